"""Ticks: how a program says that a layer has ended. One sink, the running session; without one, ticks cost nothing.

This module imports no torch: `sentinel.add_layer` stays in scripts that run where Sentinel watches nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sentinel.core.trace import Phase


class TickSink(Protocol):
    """What a session does with ticks. Called on the thread that trains, between operators."""

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """A layer has ended, and this is its name. `source`: `add_layer` or `annotate`."""

    def step_boundary(self) -> None:
        """An optimizer has stepped: its last tick, if it has any, came just before."""


sink: TickSink | None = None
"""The running session. Assign `ticks.sink`; a copy made by `from ticks import sink` would not follow."""


def add_layer(name: str | None = None) -> None:
    """End a layer and name it. Without a session: nothing, in well under 100 ns."""
    if sink is not None:
        sink.tick(name or "", "", "add_layer")


def _forget() -> None:
    """A forked child trains on with stock allocation: the session, its movers and its logs are the parent's."""
    global sink
    sink = None


os.register_at_fork(after_in_child=_forget)
