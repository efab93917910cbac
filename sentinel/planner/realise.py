"""A mix of columns -> a Decision: whole pages, every layer's room exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.columns import Columns
from sentinel.planner.decision import MOVE_DTYPE, PART_DTYPE, Decision
from sentinel.planner.episodes import Episodes
from sentinel.planner.intervals import EVICT, PREFETCH, tier_at_zero
from sentinel.planner.load import spread
from sentinel.planner.reserve import Reserve
from sentinel.planner.workload import Workload

_LEAST_PAGES = 4
"""Parts below this are not worth a migration of their own."""


def realise(
    work: Workload, of: NDArray[np.int64], columns: Columns, share: NDArray[np.float64], short: Reserve
) -> Decision:
    """Give each column its share of its family's pages, as far as room goes. `of`: family of each unit of `work`."""
    owner, episodes = columns.episodes
    pages = _whole_pages(columns.work, columns.unit, share)
    room = work.budget_bytes - short.held_bytes
    granted = _granted(columns, owner, episodes, pages, room)
    of = of.copy()
    of[short.pooled] = len(columns.work.units)  # a family of its own, without columns
    parts, column_of_part = _parts(work, of, columns.unit, granted, _born_fast(columns.n, owner, episodes))
    moves = _moves(owner, episodes, column_of_part, work.n_layers)
    moved = np.zeros(len(parts), bool)
    moved[moves["part"]] = True
    alone = np.bincount(parts["unit"], minlength=len(work.units))[parts["unit"]] == 1
    parts["pooled"] = alone & ~moved & (parts["tier"] > 0) & ~work.units.persistent[parts["unit"]]
    inside = np.isin(parts["unit"], short.pooled)
    parts["pooled"][inside], parts["tier"][inside] = True, 0
    tier_at_zero(parts, moves, work.units.persistent, work.n_layers)
    return Decision(parts, moves, short.tier, short.pool)


def _whole_pages(work: Workload, unit: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.int64]:
    """(columns,) pages of each: a unit's shares are rounded together, and crumbs go to its largest column."""
    total = work.units.nbytes // PAGE_BYTES
    pages = np.zeros(len(unit), np.int64)
    chosen = np.flatnonzero(share > 1e-6)
    chosen = chosen[np.lexsort((-share[chosen], unit[chosen]))]
    edges_of = np.flatnonzero(np.diff(unit[chosen], prepend=-1, append=-1)) if len(chosen) else np.zeros(1, np.int64)
    for low, high in pairwise(edges_of.tolist()):
        rows = chosen[low:high]
        whole = int(total[unit[rows[0]]])
        edges = np.rint(np.cumsum(share[rows]) * whole).astype(np.int64)
        given = np.diff(np.minimum(edges, whole), prepend=0)
        crumbs = (given < _LEAST_PAGES) & (given < whole)
        crumbs[0] = False
        given[0] += given[crumbs].sum()
        given[crumbs] = 0
        pages[rows] = given
    return pages


def _granted(
    columns: Columns,
    owner: NDArray[np.int64],
    episodes: Episodes,
    pages: NDArray[np.int64],
    room: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(columns,) pages as far as they fit. Rounding may ask for a little more than there is."""
    work, length = columns.work, columns.work.n_layers
    some = np.flatnonzero(pages[owner] > 0)
    owner, start, stop = owner[some], episodes.held_from[some], episodes.held_until[some]
    weight = pages[owner] * PAGE_BYTES
    left = room - ring_sum(np.zeros(len(owner), np.int64), start, stop, weight, 1, length)[0]
    if (left >= 0).all():
        return pages
    pages = pages.copy()
    layer, which = spread(start, stop, length)
    touching = np.unique(owner[which[left[layer] < 0]])
    value = np.bincount(owner, episodes.value_ns[some], columns.n) / work.units.nbytes[columns.unit]
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(columns.n + 1))
    for c in touching[np.lexsort((touching, value[touching]))].tolist():
        held = [np.arange(start[e], stop[e]) % length for e in order[first[c] : first[c + 1]]]
        layers = np.concatenate(held)
        need = -int(left[layers].min())
        if need > 0:
            cut = min(int(pages[c]), -(-need // PAGE_BYTES))
            pages[c] -= cut
            left[layers] += cut * PAGE_BYTES
    return pages


def _born_fast(n: int, owner: NDArray[np.int64], episodes: Episodes) -> NDArray[np.bool_]:
    """(columns,) whether the first episode is a birth in fast memory, or a stay for good."""
    born = np.zeros(n, bool)
    born[owner[~episodes.promote]] = True
    return born


def _parts(
    work: Workload,
    of: NDArray[np.int64],
    family: NDArray[np.int64],
    pages: NDArray[np.int64],
    born: NDArray[np.bool_],
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The part table, and each part's column, -1 for what stays in slow memory.

    A family's units lie one after the other; its columns take page ranges of that, those born in fast memory first.
    Both cut it: a part is a piece of one unit in one column.
    """
    total = work.units.nbytes // PAGE_BYTES
    n_families = int(of.max(initial=-1)) + 1
    whole = np.bincount(of, total, n_families).astype(np.int64)
    taken = np.bincount(family, pages, n_families).astype(np.int64)
    chosen = np.flatnonzero(pages > 0)
    rest = np.flatnonzero(whole > taken)
    column = np.append(chosen, np.full(len(rest), -1))
    slow = np.append(~born[chosen], np.ones(len(rest), bool))
    order = np.lexsort((column, slow, np.append(family[chosen], rest)))
    column, slow = column[order], slow[order]
    ends = np.cumsum(np.append(pages[chosen], (whole - taken)[rest])[order])
    by_family = np.argsort(of, kind="stable")
    unit_ends = np.cumsum(total[by_family])
    cuts = np.union1d(ends, unit_ends)
    starts = np.append(0, cuts)[:-1]
    piece, place = np.searchsorted(ends, starts, side="right"), np.searchsorted(unit_ends, starts, side="right")
    parts = np.zeros(len(cuts), PART_DTYPE)
    parts["unit"] = by_family[place]
    parts["page"] = starts - (unit_ends - total[by_family])[place]
    parts["pages"] = cuts - starts
    parts["tier"] = slow[piece]
    order = np.lexsort((parts["page"], parts["unit"]))
    return parts[order], column[piece][order]


def _moves(
    owner: NDArray[np.int64], episodes: Episodes, column_of_part: NDArray[np.int64], length: int
) -> NDArray[np.void]:
    """The migrations of each part: those of its column."""
    order = np.argsort(owner, kind="stable")
    movers = np.flatnonzero(column_of_part >= 0)
    first = np.searchsorted(owner[order], column_of_part[movers])
    count = np.searchsorted(owner[order], column_of_part[movers], side="right") - first
    part = np.repeat(movers, count)
    row = order[np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)]
    pieces = []
    for wanted, start, due, source, reason in (
        (episodes.demote, episodes.end, episodes.held_until, 0, EVICT),
        (episodes.promote, episodes.held_from, episodes.begin, 1, PREFETCH),
    ):
        mine = np.flatnonzero(wanted[row])
        moves = np.zeros(len(mine), MOVE_DTYPE)
        e = row[mine]
        moves["part"], moves["source"], moves["target"], moves["reason"] = part[mine], source, 1 - source, reason
        moves["start"] = start[e] % length
        moves["due"] = moves["start"] + due[e] - start[e]
        moves["rank"] = -episodes.value_ns[e]
        pieces.append(moves)
    return np.concatenate(pieces)
