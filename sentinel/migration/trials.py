"""Test and trial (case 3 of the paper): when migrations are late, is it faster to wait or to go on without them?

Where promotions are late as a layer begins, steps wait for them and leave the rest in slow memory in turn, TRIES times
each. What counts is the time from that layer to the next before which promotions are due; these windows tile the step,
so trials at several layers run side by side. The plan stands, which is to wait, unless leaving is clearly faster: what
it spares is known exactly, the wait; what it costs, slow accesses, shows in windows that vary by themselves. Where they
vary too much to tell, the trial goes on later, for ROUNDS in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from sentinel.core.run import TrialDecision

TRIES, ROUNDS = 3, 4
"""Windows of each way in a round, and rounds. One window each would toss a coin wherever the wait is shorter than
windows vary; more of them find what is true even then. Most places need one round."""
CLEARLY = 2
"""Leaving must gain twice the noise. Where it is the slower way, it is then chosen in one trial of twenty."""
BETWEEN = 8
"""Between two rounds the migrations are late 8 times, and what was decided before goes on. Before the first round it is
8 times too, as the plan has it: the first steps are cold, layer times are taken from them, and a new plan may come."""
NEGLIGIBLE = 100
"""If the wait is under 1 % of its window, waiting goes on: a trial is not worth its steps."""
FIRST_REST = 64
"""A decision is tried again once migrations were late 64 times more: what else runs here may have changed. The next
trial comes after 128, and so on: trials take less and less of a long run, and no decision is wrong for longer than for
half of it."""


@dataclass(frozen=True)
class Finding:
    """What the windows of a trial say, in ns. `wait_ns`: the wait that leaving spares, in a usual window.

    `slower_ns`: how much longer the rest of the best window is without waiting; by what it is below 0, noise.
    `noise_ns`: how far apart the best windows of one kind lie.
    """

    wait_ns: int
    slower_ns: int
    noise_ns: int

    @property
    def gain_ns(self) -> int:
        """What leaving gains, below 0 if it costs."""
        return self.wait_ns - max(self.slower_ns, 0)

    @property
    def waits(self) -> bool:
        """Whether waiting stays the better choice: unless leaving is clearly faster."""
        return self.gain_ns <= CLEARLY * self.noise_ns

    @property
    def clear(self) -> bool:
        """Whether more windows are unlikely to say something else."""
        return not self.waits or -self.gain_ns >= self.noise_ns


def finding(waits_ns: Sequence[int], busy_ns: Sequence[int], left_ns: Sequence[int]) -> Finding:
    """The finding of windows that waited (their waits, and the rest of them) and of those that did not wait, TRIES of
    each at least.

    The best window is the least disturbed one, the more so the nearer the next ones lie. A window cannot be shorter
    because bytes stayed in slow memory: where it seems so, that much is noise.
    """
    slower = min(left_ns) - min(busy_ns)
    apart = max((sorted(ns)[TRIES - 1] - min(ns)) // (TRIES - 1) for ns in (busy_ns, left_ns))
    return Finding(int(median(waits_ns)), slower, max(apart, -slower))


@dataclass(slots=True)
class _Record:
    """Of one layer. `waits`: as decided last, None before. Nothing is tried for so many more times as `rest` says."""

    waits_ns: list[int] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)
    left_ns: list[int] = field(default_factory=list)
    waits: bool | None = None
    rest: int = BETWEEN
    next_rest: int = FIRST_REST

    def clear(self) -> None:
        """Forget what was tried."""
        for windows in (self.waits_ns, self.busy_ns, self.left_ns):
            windows.clear()


class Trials:
    """`boundaries`: the layers before which promotions are due, and their names. `decided` hears each decision that
    changes what is done."""

    def __init__(self, boundaries: Mapping[int, str], decided: Callable[[TrialDecision], None]) -> None:
        self._records = {layer: _Record() for layer in boundaries}
        self._names, self._decided = boundaries, decided
        self._window: tuple[int, int] | None = None  # layer, when it began
        self._tries = ""  # what the window tries: "wait", "leave" or nothing
        self._wait_ns = 0

    def enter(self, layer: int, now_ns: int) -> None:
        """`layer`, one of the boundaries, begins: the window before ends here, the next one starts."""
        if self._window is not None and self._tries:
            self._close(self._window[0], now_ns - self._window[1])
        self._window, self._tries = (layer, now_ns), ""

    def wait(self, layer: int) -> bool:
        """Promotions due before `layer` are late: whether to wait for them, this time. If so, tell how long by
        `waited`."""
        record = self._records[layer]
        if record.rest:
            record.rest -= 1
            return record.waits is not False
        self._tries = "wait" if len(record.busy_ns) <= len(record.left_ns) else "leave"
        self._wait_ns = 0
        return self._tries == "wait"

    def waited(self, wait_ns: int) -> None:
        """The wait that begins the window under way took so long."""
        self._wait_ns = wait_ns

    def abandon(self) -> None:
        """The step went out of step: its window says nothing."""
        self._window, self._tries = None, ""

    def _close(self, layer: int, window_ns: int) -> None:
        record = self._records[layer]
        if self._tries == "leave":
            record.left_ns.append(window_ns)
        else:
            untried = record.waits is None and not record.busy_ns
            if untried and self._wait_ns * NEGLIGIBLE <= window_ns:
                return
            record.waits_ns.append(self._wait_ns)
            record.busy_ns.append(window_ns - self._wait_ns)
        if len(record.left_ns) == len(record.busy_ns) and len(record.left_ns) % TRIES == 0:
            self._conclude(layer, record)

    def _conclude(self, layer: int, record: _Record) -> None:
        """A round is over: decide, or go on later."""
        found, before = finding(record.waits_ns, record.busy_ns, record.left_ns), record.waits
        if not found.clear and len(record.left_ns) < ROUNDS * TRIES:
            record.rest = BETWEEN
            return
        shortest_ns = min(record.busy_ns)
        record.clear()
        record.waits, record.rest, record.next_rest = found.waits, record.next_rest, 2 * record.next_rest
        if found.waits != before:
            times = (found.wait_ns, shortest_ns, found.slower_ns, found.noise_ns)
            self._decided(TrialDecision(layer, self._names[layer], found.waits, before is not None, *times))
