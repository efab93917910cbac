"""Migration intervals and the episodes of fast residence they give: the paper's algorithm, step 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.decision import MOVE_DTYPE, Decision, whole_parts
from sentinel.planner.reserve import Reserve
from sentinel.planner.workload import Workload

PREFETCH, EVICT, MID_INTERVAL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Episodes:
    """Stretches of units in fast memory, one row each; layers unrolled, `held_from` in (-L, 2L).

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


def interval_cuts(length: int, mil: int) -> NDArray[np.int64]:
    """First layer of each interval of `mil` layers; the last one may be shorter."""
    return np.arange(0, length, mil)


def make_episodes(work: Workload, cuts: NDArray[np.int64]) -> Episodes:
    """The episodes of every used unit if it is in fast memory in just those intervals that use it.

    Promoted while the interval before the use runs; demoted in mid-interval, from the layer after the last use to
    the interval's end. A gap too short for both is bridged.
    """
    length, units = work.n_layers, work.units
    unit, layer = work.use_unit, work.use_layer
    m = len(unit)
    if m == 0:
        return _empty()
    row = np.arange(m)
    first, last = work.first_use[unit], work.first_use[unit + 1] - 1
    wraps = (row == last) & units.persistent[unit]
    follower = np.where(row == last, first, row + 1)
    next_layer = layer[follower] + np.where(wraps, length, 0)
    leave, left, arrive, arrived = _windows(layer, next_layer, cuts, length)
    parts = ((row != last) | wraps) & (left <= arrive)
    before = np.where(row == first, last, row - 1)  # of a transient's first row: unused
    born = (row == first) & ~units.persistent[unit]
    head = born | (parts[before] & ((row != first) | units.persistent[unit]))
    # rows of a persistent unit ahead of its first head continue its last episode round the ring
    group = np.cumsum(head) - 1
    heads = np.flatnonzero(head)
    orphan = (group < 0) | (unit[heads[np.maximum(group, 0)]] != unit) if len(heads) else np.ones(m, bool)
    last_group = group[last]
    ringed = orphan & (last_group >= 0) & (len(heads) > 0)
    if len(heads):
        ringed &= unit[heads[np.maximum(last_group, 0)]] == unit
    group[ringed] = last_group[ringed]
    whole = orphan & ~ringed  # persistent and never parted: there for good
    kept = ~whole
    value = np.bincount(group[kept], work.use_ns[kept], len(heads)) if len(heads) else np.zeros(0)
    shift = np.where(row == first, length, 0)
    h = heads
    tail_of = np.full(len(h), -1, np.int64)
    tails = np.flatnonzero(kept & (parts | ((row == last) & ~units.persistent[unit])))
    tail_of[group[tails]] = tails
    is_born = born[h]
    held_from = np.where(is_born, layer[h], arrive[before[h]] - shift[h])
    begin = np.where(is_born, layer[h], arrived[before[h]] - shift[h])
    turn = np.where(tail_of < h, length, 0)
    dies = ~parts[tail_of]
    end = np.where(dies, units.stop[unit[h]], leave[tail_of] + turn)
    until = np.where(dies, units.stop[unit[h]], left[tail_of] + turn)
    stays = np.unique(unit[whole])
    total = np.bincount(unit, work.use_ns, len(units))[stays]
    zero, full = np.zeros(len(stays), np.int64), np.full(len(stays), length)
    none = np.zeros(len(stays), bool)
    return Episodes(
        unit=np.append(unit[h], stays),
        held_from=np.append(held_from, zero),
        begin=np.append(begin, zero),
        end=np.append(end, full),
        held_until=np.append(until, full),
        promote=np.append(~is_born, none),
        demote=np.append(~dies, none),
        value_ns=np.append(value, total),
    )


def _empty() -> Episodes:
    i, b, f = np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0)
    return Episodes(i, i, i, i, i, b, b, f)


def _windows(
    layer: NDArray[np.int64], next_layer: NDArray[np.int64], cuts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """After a use at `layer`: demote in [leave, left); before one at `next_layer`: promote in [arrive, arrived)."""
    at = np.repeat(cuts, np.diff(np.append(cuts, length)))
    after = np.append(np.append(cuts, length)[np.searchsorted(cuts, np.arange(length), side="right")], length)

    def cut_at(x: NDArray[np.int64]) -> NDArray[np.int64]:
        return at[x % length] + x // length * length

    leave = layer + 1
    left = after[leave % length] + leave // length * length
    arrived = cut_at(next_layer)
    return leave, left, cut_at(arrived - 1), arrived


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
    settled = ~episodes.promote[rows]
    parts["tier"][unit[settled]] = 0  # born in fast, or there for good
    moves = _moves(episodes, rows, length)
    moved = np.zeros(len(units), bool)
    moved[moves["part"]] = True
    parts["pooled"] &= ~moved & (parts["tier"] > 0)  # in fast memory, exact layers count for more than shared addresses
    _tier_at_zero(parts, moves, units.persistent, length)
    return Decision(parts, moves, short.tier, short.pool)


def _moves(episodes: Episodes, rows: NDArray[np.int64], length: int) -> NDArray[np.void]:
    """A promotion and a demotion for each episode that has them; the hottest bytes are promoted first."""
    pieces = []
    for wanted, start, due, source, reason in (
        (episodes.demote, episodes.end, episodes.held_until, 0, MID_INTERVAL),
        (episodes.promote, episodes.held_from, episodes.begin, 1, PREFETCH),
    ):
        chosen = rows[wanted[rows]]
        moves = np.zeros(len(chosen), MOVE_DTYPE)
        moves["part"] = episodes.unit[chosen]
        moves["source"], moves["target"], moves["reason"] = source, 1 - source, reason
        moves["start"] = start[chosen] % length
        moves["due"] = moves["start"] + due[chosen] - start[chosen]
        moves["rank"] = -episodes.value_ns[chosen]
        pieces.append(moves)
    return np.concatenate(pieces)


def _tier_at_zero(parts: NDArray[np.void], moves: NDArray[np.void], persistent: NDArray[np.bool_], length: int) -> None:
    """Set the tier of persistent parts that move: where their last move of the step has left them as layer 0 begins."""
    order = np.lexsort((moves["start"], moves["part"]))
    part = moves["part"][order]
    lasts = order[np.flatnonzero(np.append(part[1:] != part[:-1], True))] if len(order) else order
    lasts = lasts[persistent[parts["unit"][moves["part"][lasts]]]]
    done = moves["due"][lasts] <= length
    parts["tier"][moves["part"][lasts]] = np.where(done, moves["target"][lasts], moves["source"][lasts])
