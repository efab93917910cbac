"""Test and trial (case 3 of the paper): when migrations are late, is it faster to wait or to go on without them?

The first time that promotions are late as a layer begins, one step waits for them and one step leaves the rest in
slow memory. What counts is the time from that layer to the next before which promotions are due, the wait included;
these windows tile the step, so trials at several layers run side by side. The faster way is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sentinel.core.run import TRIAL
from sentinel.core.units import format_ns


@dataclass(slots=True)
class _Record:
    wait_ns: int | None = None
    leave_ns: int | None = None

    @property
    def waits(self) -> bool | None:
        """The decision; None while a trial is missing."""
        if self.wait_ns is None or self.leave_ns is None:
            return None
        return self.wait_ns <= self.leave_ns


class Trials:
    """`boundaries`: the layers before which promotions are due. `decided(layer, sentence)` hears each decision."""

    def __init__(self, boundaries: Sequence[int], decided: Callable[[int, str], None]) -> None:
        self._records = {layer: _Record() for layer in boundaries}
        self._decided = decided
        self._window: tuple[int, int] | None = None  # layer, when it began
        self._tries = ""  # what the window tries: "wait", "leave" or nothing

    def enter(self, layer: int, now_ns: int) -> None:
        """`layer`, one of the boundaries, begins: the window before ends here, the next one starts."""
        if self._window is not None and self._tries:
            self._close(now_ns)
        self._window, self._tries = (layer, now_ns), ""

    def wait(self, layer: int) -> bool:
        """Promotions due before `layer` are late: whether to wait for them, this time."""
        record = self._records[layer]
        if record.waits is not None:
            return record.waits
        self._tries = "wait" if record.wait_ns is None else "leave"
        return self._tries == "wait"

    def abandon(self) -> None:
        """The step went out of step: its window says nothing."""
        self._window, self._tries = None, ""

    def _close(self, now_ns: int) -> None:
        assert self._window is not None
        layer, began_ns = self._window
        record = self._records[layer]
        if self._tries == "wait":
            record.wait_ns = now_ns - began_ns
        else:
            record.leave_ns = now_ns - began_ns
        if record.waits is None or record.wait_ns is None or record.leave_ns is None:
            return
        verdict = "waits for them" if record.waits else "leaves the rest in slow memory"
        self._decided(
            layer,
            f"{TRIAL}migrations due before layer {layer} come late: with waiting it takes"
            f" {format_ns(record.wait_ns)} to the next interval, without {format_ns(record.leave_ns)};"
            f" from now on it {verdict}",
        )
