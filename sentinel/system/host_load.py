"""How busy the host was while a job ran: what others had of its processors, and what the job's thread waited."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from sentinel.system import process_tree
from sentinel.system.launched import launched
from sentinel.system.sysfs import text

LEAST_NS = 20_000_000
"""A thread that wanted a processor for less than this says nothing."""
LEAST_TICKS = 100
"""Nor do fewer clock ticks of all processors: one that was stolen would be a large share."""

Phase = Literal["profiled", "applied"]
JudgedBy = Literal["others", "waits"]


class HostLoad(NamedTuple):
    """Between two readings; None where the kernel does not tell, or too little was run.

    `cpu_ns`: processor time of all threads of this process. `waited_share`: of the time in which the job's thread
    wanted a processor, that in which it got none: others had it, or threads of the job itself (more of them than
    processors, Sentinel's movers too), or a cgroup's quota was used up.
    `stolen_share`: of all processors' time, that which a hypervisor gave to others. `others_share`: that which others
    had, the hypervisor included: all processes but the job's. It is the larger of two shares, of all processors, and of
    those that the job may use.
    """

    cpu_ns: int
    waited_share: float | None
    stolen_share: float | None
    others_share: float | None

    @property
    def busy_share(self) -> float | None:
        """What a host is judged by: the larger of `others_share` and `stolen_share`. A job's own threads make it wait
        as well, so its waits stand in only where nobody tells what others had."""
        first = self.waited_share if self.others_share is None else self.others_share
        return max((share for share in (first, self.stolen_share) if share is not None), default=None)

    @property
    def judged_by(self) -> JudgedBy | None:
        """What `busy_share` comes from, besides stolen time."""
        if self.others_share is not None:
            return "others"
        return None if self.busy_share is None else "waits"


class Processor(NamedTuple):
    """Clock ticks so far: all of them, those in which it worked, for whomever, and those that a hypervisor took."""

    ticks: int
    busy: int
    stolen: int


class Spent(NamedTuple):
    """What a host's processors did so far, by their numbers; none where `/proc/stat` does not tell.

    `own_ticks`: what a process and all below it had of that; None where it is not seen. `allowed`: where they may run.
    """

    processors: Mapping[int, Processor]
    own_ticks: int | None
    allowed: frozenset[int]


class Reading(NamedTuple):
    """Sums so far: times of this process, of one thread of it on a processor and waiting for one, 0 where the kernel
    does not tell; and what processors did."""

    cpu_ns: int
    ran_ns: int
    waited_ns: int
    spent: Spent


def read(thread: int, root: Path = Path("/")) -> Reading:
    """A reading; `thread`: the kernel's number of a thread of this process."""
    scheduled = [int(word) for word in text(root / f"proc/self/task/{thread}/schedstat").split()]
    ran, waited = scheduled[:2] if len(scheduled) > 1 else (0, 0)
    return Reading(time.process_time_ns(), ran, waited, spent(job(), root))


def job() -> int:
    """The process at the head of this job: this one, or what has started all of its ranks on this host."""
    parent = os.getppid()
    return parent if launched().local_size > 1 and parent > 1 else os.getpid()


def spent(pid: int, root: Path = Path("/")) -> Spent:
    """What the processors did so far, and the process `pid` with all below it."""
    processors = {}
    for line in text(root / "proc/stat").splitlines():
        name, *words = line.split()
        number = name.removeprefix("cpu")
        if number != name and number.isdigit() and len(words) >= 8:
            told = [int(word) for word in words[:8]]  # user, nice, system, idle, iowait, irq, softirq, steal
            processors[int(number)] = Processor(sum(told), sum(told) - told[3] - told[4], told[7])
    found = process_tree.processes(root)
    if pid not in found:
        return Spent(processors, None, frozenset())
    return Spent(
        processors,
        process_tree.ticks(pid, found),
        process_tree.allowed(process_tree.tree(pid, found), root),
    )


def others_share(before: Spent, after: Spent, least_ticks: int = 1) -> float | None:
    """What others had from one reading to the next; see HostLoad. None where it was not told, or within fewer ticks."""
    there = before.processors.keys() & after.processors.keys()
    if before.own_ticks is None or after.own_ticks is None:
        return None
    own = max(after.own_ticks - before.own_ticks, 0)
    shares = []
    for cpus in (there, (before.allowed | after.allowed) & there or there):
        ticks, busy = (_passed(before, after, cpus, what) for what in ("ticks", "busy"))
        if ticks < least_ticks:
            return None
        shares.append(min(max(busy - own, 0) / ticks, 1.0))
    return max(shares)


def between(before: Reading, after: Reading) -> HostLoad:
    """The load from one reading to the next."""
    cpu, ran, waited = (now - then for then, now in zip(before[:3], after[:3], strict=True))
    wanted, there = ran + waited, before.spent.processors.keys() & after.spent.processors.keys()
    ticks, stolen = (_passed(before.spent, after.spent, there, what) for what in ("ticks", "stolen"))
    return HostLoad(
        cpu,
        waited / wanted if wanted >= LEAST_NS and waited >= 0 else None,
        stolen / ticks if ticks >= LEAST_TICKS and stolen >= 0 else None,
        others_share(before.spent, after.spent, LEAST_TICKS),
    )


def _passed(before: Spent, after: Spent, cpus: Collection[int], what: str) -> int:
    return sum(getattr(after.processors[cpu], what) - getattr(before.processors[cpu], what) for cpu in cpus)


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
