"""Migration intervals and the episodes of fast residence they give: the paper's algorithm, step 4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.decision import MOVE_DTYPE, Decision, whole_parts
from sentinel.planner.episodes import Choice, Episodes, episodes_of, gaps
from sentinel.planner.reserve import Reserve
from sentinel.planner.workload import Workload

PREFETCH, EVICT, MID_INTERVAL = 0, 1, 2


def interval_cuts(length: int, mil: int) -> NDArray[np.int64]:
    """First layer of each interval of `mil` layers; the last one may be shorter."""
    return np.arange(0, length, mil)


def make_episodes(work: Workload, cuts: NDArray[np.int64]) -> Episodes:
    """The episodes of every used unit if it is in fast memory in just those intervals that use it.

    Promoted while the interval before the use runs; demoted in mid-interval, from the layer after the last use to
    the interval's end. A gap too short for both is bridged.
    """
    _, next_layer, has_gap = gaps(work)
    leave, left, arrive, arrived = _windows(work.use_layer, next_layer, cuts, work.n_layers)
    everywhere = np.ones(len(leave), bool)
    return episodes_of(work, Choice(everywhere, has_gap & (left <= arrive), leave, left, arrive, arrived))


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
    tier_at_zero(parts, moves, units.persistent, length)
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


def tier_at_zero(parts: NDArray[np.void], moves: NDArray[np.void], persistent: NDArray[np.bool_], length: int) -> None:
    """Set the tier of persistent parts that move: where their last move of the step has left them as layer 0 begins."""
    order = np.lexsort((moves["start"], moves["part"]))
    part = moves["part"][order]
    lasts = order[np.flatnonzero(np.append(part[1:] != part[:-1], True))] if len(order) else order
    lasts = lasts[persistent[parts["unit"][moves["part"][lasts]]]]
    done = moves["due"][lasts] <= length
    parts["tier"][moves["part"][lasts]] = np.where(done, moves["target"][lasts], moves["source"][lasts])
