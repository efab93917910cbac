"""A fractional mix of timelines -> a Decision on whole pages.

First LP diving: shares of pinned classes are fixed to whole numbers, a few in each round, and the program is solved
again around them. Then each timeline gets its share of pages, as far as every layer has room.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.ragged import positions, ranges
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.decision import EVICT, PART_DTYPE, Decision, Episodes, migrations_of, tier_at_zero
from sentinel.planner.master import Columns, Master, Mix
from sentinel.planner.pool import Reserve
from sentinel.planner.relaxation import PinnedCandidates
from sentinel.planner.workload import Workload

_UP, _DOWN = 0.75, 0.15
"""Fractions of a unit from which a round rounds up, and up to which it rounds down."""


class Dive:
    """LP diving: rounds the numbers of pinned units of each class, because a pinned unit shares its addresses whole.

    A round fixes what is near a whole number, rounds the largest other fraction up and solves the program again.
    `mix`: the last one solved. `members`: units of each class.
    """

    def __init__(self, master: Master, mix: Mix, members: NDArray[np.int64]) -> None:
        self.master, self.mix = master, mix
        self._long = np.flatnonzero(master.candidates.unit_class >= 0)
        self._members = members[master.candidates.unit_class[self._long]].astype(np.float64)
        self._low, self._high = np.zeros(len(self._long)), np.ones(len(self._long))

    def run(self, rounds: int) -> int:
        """Dive for at most so many rounds; returns how many changed the mix."""
        for number in range(rounds):
            if not self._round_some():
                return number
        return rounds

    def _round_some(self) -> bool:
        low, high, m = self._low, self._high, self._members
        count = self.mix.pinned[self._long] * m
        part = count - np.floor(count + 1e-6)
        open_ = np.flatnonzero((part > 1e-3) & (high > low))
        if not len(open_):
            return False
        up = open_[(part[open_] >= _UP) | (part[open_] == part[open_].max())]
        down = np.setdiff1d(open_[part[open_] <= _DOWN], up)
        low[up] = np.minimum(np.ceil(count[up]) / m[up], 1.0)
        high[down] = np.floor(count[down]) / m[down]
        self.master.limit_pinned(self._long, low, high)
        found = self.master.solve()
        if found is None:  # no room for what was rounded up
            low[up], high[up] = 0.0, np.floor(count[up]) / m[up]
            self.master.limit_pinned(self._long, low, high)
            found = self.master.solve()
        if found is None:
            return False
        self.mix = found
        return True


def pinned_units(work: Workload, of: NDArray[np.int64], candidates: PinnedCandidates, mix: Mix) -> NDArray[np.int64]:
    """Units that the mix pins: of each class as many as come nearest to its share."""
    share = np.zeros(int(of.max(initial=-1)) + 1)
    long = candidates.unit_class >= 0
    share[candidates.unit_class[long]] = mix.pinned[long]
    return _nearest(of, work.units.nbytes.astype(np.float64), share)


def _nearest(group: NDArray[np.int64], nbytes: NDArray[np.float64], share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Members, of each group as many as come nearest to its share of bytes, the largest first."""
    order = np.lexsort((np.arange(len(group)), -nbytes, group))
    sizes = nbytes[order]
    before = np.cumsum(sizes) - sizes
    before -= before[np.searchsorted(group[order], group[order])] if len(order) else 0
    total = np.bincount(group, nbytes, len(share))
    return order[before + sizes / 2 < (share * total)[group[order]]]


def unpinned_shorts(work: Workload, candidates: PinnedCandidates, mix: Mix) -> NDArray[np.bool_]:
    """(short,) those that the mix leaves in slow memory: of each group the share that it says, the largest first."""
    t = work.profile.tensors[work.units.short]
    slow = np.zeros(len(t), bool)
    counted = np.flatnonzero(candidates.of >= 0)
    slow[counted] = True
    slow[counted[_nearest(candidates.of[counted], t["nbytes"][counted].astype(np.float64), mix.pinned)]] = False
    return slow


_LEAST_PAGES = 4
"""Parts below this are not worth a migration of their own."""


def round_to_pages(
    work: Workload, of: NDArray[np.int64], columns: Columns, share: NDArray[np.float64], short: Reserve
) -> Decision:
    """Give each column its share of its class's pages, as far as room goes. `of`: class of each unit of `work`."""
    owner, episodes = columns.episodes
    pages = _pages(work, of, columns, share, short)
    room = work.budget_bytes - short.held_bytes
    granted = _granted(columns, owner, episodes, pages, room)
    of = of.copy()
    of[short.pooled] = len(columns.work.units)  # a class of its own, without columns
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


def lacking_bytes(
    work: Workload, of: NDArray[np.int64], columns: Columns, share: NDArray[np.float64], short: Reserve
) -> NDArray[np.int64]:
    """(L,) bytes by which whole pages exceed the room of each layer."""
    owner, episodes = columns.episodes
    room = work.budget_bytes - short.held_bytes
    return np.maximum(-_room_left(owner, episodes, _pages(work, of, columns, share, short), room), 0)


def _pages(
    work: Workload, of: NDArray[np.int64], columns: Columns, share: NDArray[np.float64], short: Reserve
) -> NDArray[np.int64]:
    """(columns,) pages of each class that its share is, before it is looked whether they fit."""
    left = columns.work.units.nbytes // PAGE_BYTES
    left -= np.bincount(of[short.pooled], work.units.nbytes[short.pooled] // PAGE_BYTES, len(left)).astype(np.int64)
    return _whole_pages(columns.work, columns.unit, share, left)


def _room_left(
    owner: NDArray[np.int64], episodes: Episodes, pages: NDArray[np.int64], room: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(L,) bytes of `room` that these pages of columns leave, below 0 where they do not fit."""
    weight = pages[owner] * PAGE_BYTES
    held = ring_sum(np.zeros(len(owner), np.int64), episodes.held_from, episodes.held_until, weight, 1, len(room))
    return np.asarray(room - held[0])


def _whole_pages(
    work: Workload, unit: NDArray[np.int64], share: NDArray[np.float64], left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(columns,) pages of each: a unit's shares are rounded together, and crumbs go to its largest column.

    `left`: (units,) most pages of each: the shares that a solver gives may add up to a ten-millionth more.
    """
    total = work.units.nbytes // PAGE_BYTES
    pages = np.zeros(len(unit), np.int64)
    chosen = np.flatnonzero(share > 1e-6)
    chosen = chosen[np.lexsort((-share[chosen], unit[chosen]))]
    head = np.flatnonzero(np.diff(unit[chosen], prepend=-1))
    counts = np.diff(head, append=len(chosen))
    ordinal, of = positions(counts), np.repeat(np.arange(len(head)), counts)
    whole = total[unit[chosen]]
    sums = share[chosen]
    for number in range(1, int(counts.max(initial=0))):  # one after the other: a sum of shares depends on the order
        rows = np.flatnonzero(ordinal == number)
        sums[rows] += sums[rows - 1]
    edges = np.minimum(np.rint(sums * whole).astype(np.int64), left[unit[chosen]])
    given = edges - np.where(ordinal == 0, 0, np.roll(edges, 1))
    crumbs = (given < _LEAST_PAGES) & (given < whole) & (ordinal > 0)
    given[head] += np.bincount(of[crumbs], given[crumbs], len(head)).astype(np.int64)
    given[crumbs] = 0
    pages[chosen] = given
    if work.fetched.any():  # all of it is somewhere
        largest = chosen[head]
        fetched = largest[work.fetched[unit[largest]]]
        pages[fetched] += (left - np.bincount(unit, pages, len(left)).astype(np.int64))[unit[fetched]]
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
    left = _room_left(owner, episodes, pages, room)
    owner, start, stop = owner[some], episodes.held_from[some], episodes.held_until[some]
    if (left >= 0).all():
        return pages
    pages = pages.copy()
    over = np.append(0, np.cumsum(np.tile(left < 0, 2)))
    begin = start % length
    touching = np.unique(owner[over[begin + np.clip(stop - start, 0, length)] > over[begin]])
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
            if (left >= 0).all():
                break
    return pages


def _born_fast(n: int, owner: NDArray[np.int64], episodes: Episodes) -> NDArray[np.bool_]:
    """(columns,) whether the first episode is a birth in fast memory, or a stay for good."""
    born = np.zeros(n, bool)
    born[owner[~episodes.promote]] = True
    return born


def _parts(
    work: Workload,
    of: NDArray[np.int64],
    unit_class: NDArray[np.int64],
    pages: NDArray[np.int64],
    born: NDArray[np.bool_],
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The part table, and each part's column, -1 for what stays in slow memory.

    A class's units lie one after the other; its columns take page ranges of that, those born in fast memory first.
    Both cut it: a part is a piece of one unit in one column.
    """
    total = work.units.nbytes // PAGE_BYTES
    n_classes = int(of.max(initial=-1)) + 1
    whole = np.bincount(of, total, n_classes).astype(np.int64)
    taken = np.bincount(unit_class, pages, n_classes).astype(np.int64)
    chosen = np.flatnonzero(pages > 0)
    rest = np.flatnonzero(whole > taken)
    column = np.append(chosen, np.full(len(rest), -1))
    slow = np.append(~born[chosen], np.ones(len(rest), bool))
    order = np.lexsort((column, slow, np.append(unit_class[chosen], rest)))
    column, slow = column[order], slow[order]
    ends = np.cumsum(np.append(pages[chosen], (whole - taken)[rest])[order])
    by_class = np.argsort(of, kind="stable")
    unit_ends = np.cumsum(total[by_class])
    cuts = np.union1d(ends, unit_ends)
    starts = np.append(0, cuts)[:-1]
    piece, place = np.searchsorted(ends, starts, side="right"), np.searchsorted(unit_ends, starts, side="right")
    parts = np.zeros(len(cuts), PART_DTYPE)
    parts["unit"] = by_class[place]
    parts["page"] = starts - (unit_ends - total[by_class])[place]
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
    rows = order[ranges(first, count)]
    return migrations_of(episodes, rows, np.repeat(movers, count), length, EVICT)
