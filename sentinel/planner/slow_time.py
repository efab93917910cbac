"""When parts of a decision are in slow memory, and which of their uses it serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.decision import Decision
from sentinel.planner.units import Units
from sentinel.planner.workload import Workload


@dataclass(frozen=True, eq=False)
class SlowTime:
    """Spans [start, stop) of unrolled layers in which `part` holds slow memory, by part; those of a part are disjoint.

    A part in flight holds it, and is served by it, so these are the uses that slow memory serves. `layers`: (parts,)
    how many. `slow`: (parts,) whether there are any; a part without has one span, its life, in which it would.
    """

    part: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first: NDArray[np.int64]
    layers: NDArray[np.int64]
    slow: NDArray[np.bool_]

    def spans_of(self, part: int) -> list[tuple[int, int]]:
        """The spans of one part."""
        rows = slice(int(self.first[part]), int(self.first[part + 1]))
        return list(zip(self.start[rows].tolist(), self.stop[rows].tolist(), strict=True))


def slow_time(decision: Decision, units: Units, profile: Profile) -> SlowTime:
    """The slow time of a decision that tells fast (0) from slow (1)."""
    parts, moves, length = decision.parts, decision.moves, profile.n_layers
    birth, death = units.start[parts["unit"]], units.stop[parts["unit"]]
    ring = units.persistent[parts["unit"]]
    mover = moves["part"].astype(np.int64)
    begin = moves["start"].astype(np.int64)
    begin += np.where(begin < birth[mover], length, 0)
    due = begin + moves["due"] - moves["start"]
    order = np.lexsort((begin, mover))
    mover, begin, due, up = mover[order], begin[order], due[order], (moves["target"] == 0)[order]
    head = np.diff(mover, prepend=-1) != 0
    tail = np.append(head[1:], True) if len(head) else head
    previous = np.append(0, begin[:-1]) if len(begin) else begin
    last_of = np.zeros(len(parts), np.int64)
    last_of[mover[tail]] = begin[tail]
    # a promotion ends a span that a demotion, a birth in slow memory, or the last demotion of the step before began
    since = np.where(head, np.where(ring[mover], last_of[mover] - length, birth[mover]), previous)
    ends = np.flatnonzero(tail & ~up & ~ring[mover])
    still = np.ones(len(parts), bool)
    still[mover] = False
    rest = np.flatnonzero(still)
    part = np.concatenate([mover[up], mover[ends], rest])
    start = np.concatenate([since[up], begin[ends], birth[rest]])
    stop = np.concatenate([due[up], death[mover[ends]], death[rest]])
    order = np.lexsort((start, part))
    part, start, stop = part[order], start[order], stop[order]
    return SlowTime(
        part,
        start,
        stop,
        np.searchsorted(part, np.arange(len(parts) + 1)),
        np.bincount(part, stop - start, len(parts)).astype(np.int64),
        ~still | (parts["tier"] > 0),
    )


def used_ns(work: Workload, decision: Decision, time: SlowTime, use_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """(parts,) sum of `use_ns`, one entry a use of `work`, over what slow memory serves of each part."""
    length, parts = work.n_layers, decision.parts
    key = work.use_unit * length + work.use_layer % length
    order = np.argsort(key, kind="stable")
    key, total = key[order], np.append(0.0, np.cumsum(use_ns[order]))
    unit = parts["unit"][time.part].astype(np.int64)
    begin = time.start % length
    end = begin + np.minimum(time.stop - time.start, length)
    sums = np.zeros(len(unit))
    for low, high in ((begin, np.minimum(end, length)), (np.zeros_like(begin), np.maximum(end - length, 0))):
        sums += total[np.searchsorted(key, unit * length + high)] - total[np.searchsorted(key, unit * length + low)]
    share = parts["pages"] * PAGE_BYTES / work.units.nbytes[parts["unit"]]
    return np.asarray(np.bincount(time.part, sums, len(parts)) * share * time.slow, np.float64)
