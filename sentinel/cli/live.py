"""How a run goes: a line every few seconds, which no progress bar minds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.run import Run

EVERY_S = 5.0
"""Seconds between two lines."""


class Live:
    """Tells every EVERY_S how the steps go that a plan is applied in."""

    def __init__(self) -> None:
        self._due = 0.0

    def stepped(self) -> None:
        """An optimizer has stepped."""
        from sentinel import session

        last = session.current()
        if time.monotonic() < self._due or last is None or not last.applying or last.away:
            return
        run, machine = last.context.applying.run(), last.flow.machine
        if run is not None and machine is not None and len(run.steps):
            say(live_line(run, machine))
        self._due = time.monotonic() + EVERY_S


def live_line(run: Run, machine: Machine) -> str:
    """The steps that are in the run's tables, 68 at most: median and spread, the latest one's bytes, link and waits."""
    from sentinel.reports.headline import migrated_by_step

    times, last = sorted(run.steps["duration_ns"].tolist()), run.steps[-1]
    low, middle, high = (times[len(times) * tenths // 10] for tenths in (1, 5, 9))
    layers = run.layers[run.layers["step"] == last["step"]]
    moved = migrated_by_step(run)[int(last["step"])]
    room = sum(link.bandwidth_bytes_per_s for link in machine.links) * int(last["duration_ns"]) / 1e9
    slow = int(layers["slow_bytes"].max(initial=0))
    return (
        f"live    {counted(run.counters.steps, 'applied step')}: {format_ns(middle)}"
        f" ({format_ns(low)} to {format_ns(high)});"
        f" {format_bytes(int(last['fast_peak_bytes']))} of {format_bytes(run.fast_capacity_bytes)} fast,"
        f" {format_bytes(slow)} slow; {format_bytes(moved)} moved, {moved / max(room, 1):.0%} of what the links can;"
        f" waits {format_ns(int(last['stall_ns']))}"
    )
