"""What a policy decides before addresses are given: where each part of a unit is born, and when it migrates.

`Episodes` are stretches of units in fast memory, with what they hold and move; `assemble` turns a Decision into a Plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.pool import Pool, Reserve
from sentinel.planner.workload import Units, Workload


@dataclass(frozen=True, eq=False)
class Choice:
    """Per use (row of `Workload.use_*`): whether fast memory serves it, and what happens in the gap behind it.

    `parted[r]`: between two fast uses the unit goes to slow memory and comes back. A unit that leaves does so in
    layers [leave, left), one that comes in [arrive, arrived); all unrolled from the use's own layer.
    """

    fast: NDArray[np.bool_]
    parted: NDArray[np.bool_]
    leave: NDArray[np.int64]
    left: NDArray[np.int64]
    arrive: NDArray[np.int64]
    arrived: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Episodes:
    """One row each; layers unrolled, `held_from` in (-L, 2L).

    Room is held in [held_from, held_until). `promote`: a promotion runs in [held_from, begin), else the unit is born
    in fast or stays there for good. `demote`: a demotion runs in [end, held_until). `value_ns`: extra time saved.
    """

    unit: NDArray[np.int64]
    held_from: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    held_until: NDArray[np.int64]
    promote: NDArray[np.bool_]
    demote: NDArray[np.bool_]
    value_ns: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.unit)


def bridge_shortest_gaps(
    work: Workload,
    parted: NDArray[np.bool_],
    free: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Of the gaps that are `parted`, those left after bridging them from the shortest on while there is room.

    A bridged gap holds its unit's bytes of the (L,) `free` in unrolled layers [`start`, `stop`), one of each a use.
    """
    nbytes, left, parted = work.units.nbytes[work.use_unit], free.copy(), parted.copy()
    for row in np.flatnonzero(parted)[np.argsort((stop - start)[parted], kind="stable")].tolist():
        parted[row] = not take_room(left, [(int(start[row]), int(stop[row]))], int(nbytes[row]))
    return parted


def take_room(left: NDArray[np.int64], spans: Iterable[tuple[int, int]], nbytes: int) -> bool:
    """Whether so many bytes fit into the (L,) `left` in all layers of these unrolled [start, stop), no two of which
    share one; if they do, they are taken off it."""
    length, pieces = len(left), list[NDArray[np.int64]]()
    for start, stop in spans:
        begin = start % length
        end = begin + min(max(stop - start, 0), length)
        pieces += [left[begin:end]] if end <= length else [left[begin:], left[: end - length]]
    if any(piece.min(initial=nbytes) < nbytes for piece in pieces):
        return False
    for piece in pieces:
        piece -= nbytes
    return True


def served_uses(work: Workload, choice: Choice, granted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(uses,) whether one of the `granted` of `episodes_of(work, choice)` serves each use."""
    if not len(granted):
        return np.zeros(len(work.use_unit), bool)
    heads, _, whole = _stretches(work, choice)
    unit, first = work.use_unit, np.searchsorted(work.use_unit[heads], np.arange(len(work.units) + 1))
    at = np.searchsorted(heads, np.arange(len(unit)), side="right") - 1
    at = np.where(at < first[unit], first[unit + 1] - 1, at)  # round the ring: the unit's last one
    episode = np.where(first[unit] < first[unit + 1], at, len(heads) + np.searchsorted(whole, unit))
    return choice.fast & granted[np.minimum(episode, len(granted) - 1)]


def _stretches(work: Workload, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """First and last use of each stretch of uses in fast memory, and the units that never leave it."""
    unit, fast = work.use_unit, choice.fast
    follower, _, has_gap = work.gaps
    linked = fast & fast[follower] & ~choice.parted & has_gap
    opens = np.flatnonzero(work.is_first_use)
    after_link = np.append(False, linked[:-1])  # whether the use before is linked to this one, round the ring
    after_link[opens] = linked[np.append(opens[1:], len(unit)) - 1]
    counts = np.diff(work.first_use)
    whole = np.flatnonzero((np.bincount(unit, linked, len(work.units)) == counts) & (counts > 0))
    return np.flatnonzero(fast & ~after_link), np.flatnonzero(fast & ~linked), whole


def episodes_of(work: Workload, choice: Choice) -> Episodes:
    """The episodes of a choice for every unit."""
    length, units = work.n_layers, work.units
    unit, layer = work.use_unit, work.use_layer
    if not len(unit):
        none, flags = np.zeros(0, np.int64), np.zeros(0, bool)
        return Episodes(none, none, none, none, none, flags, flags, np.zeros(0))
    _, _, has_gap = work.gaps
    heads, tails, whole = _stretches(work, choice)
    owner, opening = unit[heads], work.is_first_use[heads]
    first, last = work.first_use[owner], work.first_use[owner + 1] - 1
    at = np.searchsorted(tails, heads)
    tail = tails[np.minimum(at, len(tails) - 1)] if len(tails) else np.zeros(0, np.int64)
    round_ring = (at >= len(tails)) | (unit[tail] != owner) if len(heads) else np.zeros(0, bool)
    tail = np.where(round_ring, tails[np.searchsorted(tails, first)] if len(heads) else tail, tail)
    total = work.ns_before
    value = total[tail + 1] - total[heads]
    value += np.where(round_ring, total[last + 1] - total[first], 0.0)
    is_born, dies = opening & ~units.persistent[owner], ~has_gap[tail]
    before, shift = np.where(opening, last, heads - 1), np.where(opening, length, 0)
    turn = np.where(round_ring, length, 0)
    zero, full = np.zeros(len(whole), np.int64), np.full(len(whole), length)
    never = np.zeros(len(whole), bool)
    return Episodes(
        unit=np.append(owner, whole),
        held_from=np.append(np.where(is_born, layer[heads], choice.arrive[before] - shift), zero),
        begin=np.append(np.where(is_born, layer[heads], choice.arrived[before] - shift), zero),
        end=np.append(np.where(dies, units.stop[owner], choice.leave[tail] + turn), full),
        held_until=np.append(np.where(dies, units.stop[owner], choice.left[tail] + turn), full),
        promote=np.append(~is_born, never),
        demote=np.append(~dies, never),
        value_ns=np.append(np.rint(value), np.bincount(unit, work.use_ns, len(units))[whole]),
    )


def held_layers(work: Workload, episodes: Episodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unrolled layers [start, stop) in which each episode holds room in fast memory. Where bytes are exchanged
    (`Workload.exchanges`) that is not before they have come."""
    start = np.where(episodes.promote, episodes.begin, episodes.held_from) if work.exchanges else episodes.held_from
    return start, episodes.held_until


def room_bytes(work: Workload, episodes: Episodes) -> NDArray[np.int64]:
    """(L,) bytes that episodes hold in fast memory."""
    row, nbytes = np.zeros(len(episodes), np.int64), work.units.nbytes[episodes.unit]
    return np.asarray(ring_sum(row, *held_layers(work, episodes), nbytes, 1, work.n_layers)[0])


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
    spans = list(zip(episodes.held_from.tolist(), episodes.held_until.tolist(), strict=True))
    nbytes = work.units.nbytes[episodes.unit].tolist()
    for e in order.tolist():
        granted[e] = take_room(free, [spans[e]], nbytes[e])
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
    unit: NDArray[np.int64] = parts["unit"][moves["part"][lasts]]
    lasts = lasts[persistent[unit]]
    done = moves["due"][lasts] <= length
    home = np.where(done, moves["target"][lasts], moves["source"][lasts])
    moved: NDArray[np.int64] = moves["part"][lasts]
    parts["tier"][moved] = home


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
