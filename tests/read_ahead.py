"""A step of a file tier, simulated: reads run ahead of operators, and what is needed last leaves first.

One way to execute a step, so a time that the best one does not exceed. Before each operator the granules that it
needs are brought in; for each a frame is taken that is free or whose granule is needed last (Belady). The transfers are
carried out in this order by a disk that does one at a time, as soon as the granule that leaves has had its last use:
long before the operator, if the disk has time. What is changed and still needed is written before its frame is taken.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from sentinel.core.disk_rates import DiskRates
from sentinel.core.granule_contents import granule_contents
from sentinel.core.granule_uses import GranuleUses
from sentinel.core.units import HUGE_PAGE_BYTES

_STEPS = 3
"""Simulated, of which the last one counts: the first begins with empty frames."""


def granule_uses(compute_ns: list[int], uses: list[dict[int, int]]) -> GranuleUses:
    """From the time in ns of each operator, and of each the kinds of its uses by granule."""
    counts = np.array([len(each) for each in uses], np.int64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    granule = np.array([number for each in uses for number in each], np.int32)
    kind = np.array([each for those in uses for each in those.values()], np.uint8)
    return GranuleUses(np.array(compute_ns, np.int64), first, granule, kind)


@dataclass(frozen=True)
class ReadAheadStep:
    """`step_ns`: of the last step, `waited_ns` of it without an operator; bytes are of that step."""

    step_ns: int
    waited_ns: int
    read_bytes: int
    written_bytes: int


@dataclass
class _Frames:
    """What frames hold. `next_need`: of each granule in one the operator that needs it next; `leaving`: the same as a
    heap, the latest first, with entries that are out of date."""

    free: int
    next_need: dict[int, int] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    used_until: dict[int, float] = field(default_factory=dict)  # ns
    leaving: list[tuple[int, int]] = field(default_factory=list)

    def take(self, held: set[int]) -> int | None:
        """The granule that leaves for another one, none of `held`; None where a frame is free."""
        if self.free:
            self.free -= 1
            return None
        kept = []
        while True:
            entry = heapq.heappop(self.leaving)
            need, granule = -entry[0], entry[1]
            if self.next_need.get(granule) != need:
                continue
            if granule in held:
                kept.append(entry)
                continue
            break
        for each in kept:
            heapq.heappush(self.leaving, each)
        del self.next_need[granule]
        return granule


_NEVER = 1 << 62


def read_ahead_step(uses: GranuleUses, frames: int, rates: DiskRates) -> ReadAheadStep:
    """What the step takes once it repeats. Raises ValueError where an operator needs more than `frames` granules."""
    contents = granule_contents(uses)
    order = contents.operator.argsort(kind="stable")
    rows = [getattr(contents, name)[order].tolist() for name in ("granule", "needs", "writes", "next", "next_needs")]
    accesses: list[list[tuple[int, bool, bool, int, bool]]] = [[] for _ in range(uses.operators)]
    for operator, *row in zip(contents.operator[order].tolist(), *rows, strict=True):
        accesses[operator].append((row[0], row[1], row[2], row[3], row[4]))
    most = max(map(len, accesses), default=0)
    if most > frames:
        raise ValueError(f"frames: {frames}, an operator needs {most} granules at once")
    computes = uses.compute_ns.tolist()
    told = _Frames(frames)
    now = disk = 0.0
    began, reads, writes = 0.0, 0, 0
    for step in range(_STEPS):
        began, reads, writes = now, 0, 0
        for operator, mine in enumerate(accesses):
            held = {granule for granule, *_ in mine}
            start = now
            for granule, needs, *_ in mine:
                if granule in told.next_need:
                    continue
                victim = told.take(held)
                ready = told.used_until.get(victim, 0.0) if victim is not None else 0.0
                if victim is not None and victim in told.changed:
                    told.changed.discard(victim)
                    disk = max(disk, ready) + rates.write_ns
                    ready, writes = disk, writes + 1
                if needs:
                    disk = max(disk, ready) + rates.read_ns
                    ready, reads = disk, reads + 1
                start = max(start, ready)
            now = start + computes[operator]
            for granule, _, changes, following, needed in mine:
                need = following + step * uses.operators if needed else _NEVER
                told.next_need[granule], told.used_until[granule] = need, now
                heapq.heappush(told.leaving, (-need, granule))
                if changes:
                    told.changed.add(granule)
                if not needed:
                    told.changed.discard(granule)
    return ReadAheadStep(
        step_ns=int(now - began),
        waited_ns=int(now - began) - sum(computes),
        read_bytes=reads * HUGE_PAGE_BYTES,
        written_bytes=writes * HUGE_PAGE_BYTES,
    )
