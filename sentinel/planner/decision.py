"""What a policy decides before addresses are given: where each part of a unit is born, and when it migrates.

`assemble` turns a Decision into a Plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.episodes import Episodes
from sentinel.planner.pool import Pool, Reserve
from sentinel.planner.workload import Units, Workload

PART_DTYPE = np.dtype(
    [
        ("unit", "<i4"),
        ("page", "<i8"),  # first page of the part within its unit
        ("pages", "<i8"),
        ("tier", "<i4"),  # of birth; of a persistent unit: as layer 0 begins
        ("pooled", "?"),  # never migrates and shares addresses by events, not by layers (transients only)
    ]
)

MOVE_DTYPE = np.dtype(
    [
        ("part", "<i4"),
        ("source", "<i4"),
        ("target", "<i4"),
        ("start", "<i4"),  # in [0, L)
        ("due", "<i4"),  # unrolled, in (start, start + L]
        ("reason", "<u1"),  # index into core.run.REASONS
        ("rank", "<f8"),  # within a layer and direction, lower first
    ]
)


@dataclass(frozen=True, eq=False)
class Decision:
    """`parts`: page ranges that cover every unit, by unit and page. `short_tier`: one entry per `units.short`.

    `fast_pool`: the packed pool of the fast tier, which then holds room only in the layers in which it is used;
    without it, what is pooled is packed by `assemble` into one block that is resident all step. `rest_tier`: of what
    lies above that pool's cap. `slow_tiers_chosen`: false if tier 1 stands for all slower ones (see
    `slow_tier_assignment`).
    """

    parts: NDArray[Any]
    moves: NDArray[Any]
    short_tier: NDArray[np.int64]
    fast_pool: Pool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    rest_tier: int = 1
    slow_tiers_chosen: bool = False


def whole_parts(units: Units, tier: NDArray[np.int64] | int, *, pooled: bool = True) -> NDArray[Any]:
    """One part a unit, born in `tier`; transients are pooled if they may share addresses by events."""
    parts = np.zeros(len(units), PART_DTYPE)
    parts["unit"] = np.arange(len(units))
    parts["pages"] = units.nbytes // PAGE_BYTES
    parts["tier"] = tier
    parts["pooled"] = ~units.persistent & pooled
    return parts


def no_moves() -> NDArray[Any]:
    """An empty table of moves."""
    return np.zeros(0, MOVE_DTYPE)


PREFETCH, EVICT, MID_INTERVAL = 0, 1, 2


def choose(work: Workload, episodes: Episodes, free: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(episodes,) whether each is granted: in the given order, where its bytes fit in `free` in all its layers.

    `free`: (L,) bytes; what is granted is taken off it, in place.
    """
    granted = np.zeros(len(episodes), bool)
    length = len(free)
    columns = (episodes.held_from.tolist(), episodes.held_until.tolist(), work.units.nbytes[episodes.unit].tolist())
    for e in order.tolist():
        begin, until, nbytes = columns[0][e], columns[1][e], columns[2][e]
        low, high = begin % length, begin % length + until - begin
        spans = [free[low:high]] if high <= length else [free[low:], free[: high - length]]
        if all(span.min() >= nbytes for span in spans if len(span)):
            for span in spans:
                span -= nbytes
            granted[e] = True
    return granted


def decide(work: Workload, episodes: Episodes, granted: NDArray[np.bool_], short: Reserve) -> Decision:
    """The Decision in which the granted episodes happen, on whole units; everything else is in slow memory."""
    length, units = work.n_layers, work.units
    parts = whole_parts(units, 1)
    rows = np.flatnonzero(granted)
    unit = episodes.unit[rows]
    resident = ~episodes.promote[rows]
    parts["tier"][unit[resident]] = 0  # born in fast, or there for good
    moves = migrations_of(episodes, rows, episodes.unit[rows], length, MID_INTERVAL)
    moved = np.zeros(len(units), bool)
    moved[moves["part"]] = True
    parts["pooled"] &= ~moved & (parts["tier"] > 0)  # in fast memory, exact layers count for more than shared addresses
    tier_at_zero(parts, moves, units.persistent, length)
    return Decision(parts, moves, short.tier, short.pool)


def migrations_of(
    episodes: Episodes, rows: NDArray[np.int64], part: NDArray[np.int64], length: int, demoted_for: int
) -> NDArray[np.void]:
    """A demotion and a promotion of `part[i]` for each episode `rows[i]` that has them; by value, the highest first.

    `demoted_for`: reason of the demotions, an index into REASONS.
    """
    pieces = []
    for wanted, start, due, source, reason in (
        (episodes.demote, episodes.end, episodes.held_until, 0, demoted_for),
        (episodes.promote, episodes.held_from, episodes.begin, 1, PREFETCH),
    ):
        mine = np.flatnonzero(wanted[rows])
        episode = rows[mine]
        moves = np.zeros(len(mine), MOVE_DTYPE)
        moves["part"] = part[mine]
        moves["source"], moves["target"], moves["reason"] = source, 1 - source, reason
        moves["start"] = start[episode] % length
        moves["due"] = moves["start"] + due[episode] - start[episode]
        moves["rank"] = -episodes.value_ns[episode]
        pieces.append(moves)
    return np.concatenate(pieces)


def tier_at_zero(parts: NDArray[np.void], moves: NDArray[np.void], persistent: NDArray[np.bool_], length: int) -> None:
    """Set the tier of persistent parts that move: where their last move of the step has left them as layer 0 begins."""
    order = np.lexsort((moves["start"], moves["part"]))
    part = moves["part"][order]
    lasts = order[np.flatnonzero(np.append(part[1:] != part[:-1], True))] if len(order) else order
    lasts = lasts[persistent[parts["unit"][moves["part"][lasts]]]]
    done = moves["due"][lasts] <= length
    parts["tier"][moves["part"][lasts]] = np.where(done, moves["target"][lasts], moves["source"][lasts])


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
