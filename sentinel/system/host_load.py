"""How busy the host was while a job ran: what its thread waited for a processor, and what a hypervisor took."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Literal, NamedTuple

LEAST_NS = 20_000_000
"""A thread that wanted a processor for less than this says nothing."""
LEAST_TICKS = 100
"""Nor do fewer clock ticks of all processors: one that was stolen would be a large share."""

Phase = Literal["profiled", "applied"]


class HostLoad(NamedTuple):
    """Between two readings; None where the kernel does not tell, or too little was run.

    `wall_ns`, `cpu_ns`: processor time of all threads of this process. `waited_share`: of the time in which the job's
    thread wanted a processor, that in which it got none: others had it (more threads than processors do that too), or
    a cgroup's quota was used up.
    `stolen_share`: of all processors' time, that which a hypervisor gave to others.
    """

    wall_ns: int
    cpu_ns: int
    waited_share: float | None
    stolen_share: float | None

    @property
    def busy_share(self) -> float | None:
        """The larger of the two shares."""
        return max((share for share in (self.waited_share, self.stolen_share) if share is not None), default=None)


class Reading(NamedTuple):
    """Sums so far: times of this process, of one thread of it on a processor and waiting for one, and clock ticks of
    all processors with those that were stolen; 0 where the kernel does not tell."""

    wall_ns: int
    cpu_ns: int
    ran_ns: int
    waited_ns: int
    ticks: int
    stolen: int


def read(thread: int, root: Path = Path("/")) -> Reading:
    """A reading; `thread`: the kernel's number of a thread of this process."""
    scheduled = _numbers(root / f"proc/self/task/{thread}/schedstat")
    ran, waited = scheduled[:2] if len(scheduled) > 1 else (0, 0)
    spent = _numbers(root / "proc/stat")[:8]  # user, nice, system, idle, iowait, irq, softirq, steal
    return Reading(
        time.monotonic_ns(), time.process_time_ns(), ran, waited, sum(spent), spent[7] if len(spent) == 8 else 0
    )


def between(before: Reading, after: Reading) -> HostLoad:
    """The load from one reading to the next."""
    wall, cpu, ran, waited, ticks, stolen = (now - then for then, now in zip(before, after, strict=True))
    wanted = ran + waited
    return HostLoad(
        wall,
        cpu,
        waited / wanted if wanted >= LEAST_NS and waited >= 0 else None,
        stolen / ticks if ticks >= LEAST_TICKS and stolen >= 0 else None,
    )


class HostWatch:
    """The load of the phases of a session, seen from the thread that makes this."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._began: dict[Phase, Reading] = {}
        self._over: dict[Phase, HostLoad] = {}

    def begin(self, phase: Phase) -> None:
        """The phase begins, unless it has before."""
        if phase not in self._began:
            self._began[phase] = read(self._thread)

    def profile_again(self) -> None:
        """Another step is profiled instead, unless a plan is applied already: then what it was made from counts."""
        if "applied" not in self._began:
            self._over.pop("profiled", None)
            self._began["profiled"] = read(self._thread)

    def end(self, phase: Phase) -> None:
        """The phase is over, unless it never began or is over already."""
        if phase in self._began and phase not in self._over:
            self._over[phase] = between(self._began[phase], read(self._thread))

    def load(self, phase: Phase) -> HostLoad | None:
        """Of the phase, so far if it is not over; None if it never began."""
        if phase in self._over or phase not in self._began:
            return self._over.get(phase)
        return between(self._began[phase], read(self._thread))


def _numbers(path: Path) -> list[int]:
    """The whole numbers of a file's first line; [] where there is none."""
    try:
        with path.open() as file:
            words = file.readline().split()
    except OSError:
        return []
    return [int(word) for word in words if word.isdigit()]
