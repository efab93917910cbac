"""Slots and pages, packed by lifetime on a circle: what is negligible is stacked, the rest goes where it fits lowest.

The largest go first, of one size the earlier born: intervals of one size then fill no more places than are ever alive
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.ragged import positions
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES

SMALL_ALIGN = 512
"""Slots below a page are packed at this alignment, in pages of their own."""

_BUCKETS = 512

_MANY = 20_000

_ALIGNED_SHARE = 16
"""Aligning to huge pages may take a 16th more memory than packing without, and twice the addresses."""


def pack_pages(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> NDArray[np.int64]:
    """Offsets as `pack` gives them, for many whole-page sizes: the smallest, next to nothing, are stacked on top.

    Those of a huge page and more begin with one, if that takes at most one part in `_ALIGNED_SHARE` of memory more, and
    twice the addresses: gaps that nobody fills take no memory.
    """
    stacked = _negligible(nbytes, start, stop, period)
    offsets = np.zeros(len(nbytes), np.int64)
    rows = np.flatnonzero(~stacked)
    offsets[rows] = _aligned_if_cheap(nbytes[rows], start[rows], stop[rows], period)
    extent = int((offsets + nbytes)[rows].max(initial=0))
    offsets[stacked] = extent + _stack(nbytes[stacked], start[stacked], stop[stacked], period)
    return offsets


def _aligned_if_cheap(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> NDArray[np.int64]:
    """Offsets of `pack`: aligned, unless that takes more than `pack_pages` allows."""
    if not (nbytes >= HUGE_PAGE_BYTES).any():
        return pack(nbytes, start, stop, period)
    aligned = pack(nbytes, start, stop, period, aligned=True)
    # without alignment the live peak is needed too: where that allows it, there is nothing to compare with
    peak = live_peak_bytes(nbytes, start, stop, period)
    if _is_cheap(aligned, nbytes, peak, peak):
        return aligned
    offsets = pack(nbytes, start, stop, period)
    return aligned if _is_cheap(aligned, nbytes, *_extent_and_used(offsets, nbytes)) else offsets


def _is_cheap(aligned: NDArray[np.int64], nbytes: NDArray[np.int64], extent: int, used: int) -> bool:
    """Whether what is packed with alignment takes little more than without, where it takes `extent` and `used`."""
    aligned_extent, aligned_used = _extent_and_used(aligned, nbytes)
    return aligned_extent <= 2 * extent and aligned_used <= used + used // _ALIGNED_SHARE


def _extent_and_used(offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> tuple[int, int]:
    """(bytes of addresses, bytes of them that anybody ever uses) of what is packed."""
    order = np.argsort(offsets, kind="stable")
    low, high = offsets[order], (offsets + nbytes)[order]
    reach = np.maximum.accumulate(high)
    gaps = np.maximum(low[1:] - reach[:-1], 0).sum() + low[0]
    return int(reach[-1]), int(reach[-1] - gaps)


def slot_bytes(nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) what tensors of so many bytes take in a pool."""
    align = np.where(nbytes < PAGE_BYTES, SMALL_ALIGN, PAGE_BYTES)
    return np.asarray(-(-nbytes // align) * align, np.int64)


def pack_slots(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> tuple[NDArray[np.int64], int]:
    """(offsets, extent): slots of a page and more at whole pages; above them smaller ones, `SMALL_ALIGN`ed.

    The smallest, which together hold next to nothing, are stacked without a search.
    """
    offsets = np.zeros(len(nbytes), np.int64)
    small = nbytes < PAGE_BYTES
    sizes = slot_bytes(nbytes)
    stacked = _negligible(sizes, start, stop, period)
    extent = 0
    for rows, place in (
        (np.flatnonzero(~small & ~stacked), pack),
        (np.flatnonzero(~small & stacked), _stack),
        (np.flatnonzero(small & ~stacked), pack),
        (np.flatnonzero(small & stacked), _stack),
    ):
        packed = place(sizes[rows], start[rows], stop[rows], period)
        offsets[rows] = packed + extent
        extent += int((packed + sizes[rows]).max(initial=0))
        extent = -(-extent // SMALL_ALIGN) * SMALL_ALIGN
    return offsets, -(-extent // PAGE_BYTES) * PAGE_BYTES


def _negligible(
    sizes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> NDArray[np.bool_]:
    """Tensors so small that stacking them all costs at most a 400th of the live peak, of very many a 150th."""
    if len(sizes) < 256:
        return np.zeros(len(sizes), bool)
    share = 400 if len(sizes) < _MANY else 150
    allowed = live_peak_bytes(sizes, start, stop, period) // share
    group, long = _buckets(start, stop, period)
    powers = 1 << np.arange(6, 63)
    power = powers.searchsorted(sizes)  # the smallest that is as large
    extents, shared = np.zeros(len(powers), np.int64), np.zeros((len(powers), int(group.max()) + 1), np.int64)
    np.add.at(extents, power[long], sizes[long])
    np.add.at(shared, (power[~long], group[~long]), sizes[~long])
    extents = extents.cumsum() + shared.cumsum(axis=0).max(axis=1)  # of all up to each power, as `_stack` places them
    return np.asarray(power < extents.searchsorted(allowed, side="right"))


def _stack(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> NDArray[np.int64]:
    """Offsets as `pack` gives them, by a rule that needs no search: long arcs never share, short ones by bucket."""
    bucket, long = _buckets(start, stop, period)
    out = np.zeros(len(nbytes), np.int64)
    out[long] = np.cumsum(nbytes[long]) - nbytes[long]
    rows = np.flatnonzero(~long)
    rows = rows[np.argsort(bucket[rows], kind="stable")]
    group = bucket[rows]
    total = np.cumsum(nbytes[rows]) - nbytes[rows]
    head = np.searchsorted(group, group)
    out[rows] = total - total[head] + int(nbytes[long].sum()) if len(rows) else 0
    return out


def _buckets(
    start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(n,) bucket of time in which each arc begins, and whether it is alive in others too."""
    width = max(-(-period // _BUCKETS), 1)
    bucket = start // width
    return bucket, (bucket != (stop - 1) // width) | (stop - start > period)


def live_peak_bytes(nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int) -> int:
    """Most bytes alive at one time: no packing is smaller."""
    row = np.zeros(len(nbytes), np.int64)
    return int(ring_sum(row, start, stop, nbytes, 1, period).max(initial=0))


_FEW = 4
"""An arc shorter than 4 buckets is kept in each of them, a longer one apart."""

_UNSORTED = 512
"""Rows of what is placed that are not in order yet."""

_BRIEF = 16
"""Arcs so long on average, or shorter, are placed in rounds, as long as a round places as many."""

_TIMES_AN_ARC = 3000
"""A round looks at all times of all arcs; so many take as long as placing one arc by itself."""


def pack(
    nbytes: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    period: int,
    *,
    aligned: bool = False,
) -> NDArray[np.int64]:
    """(n,) offsets of so many bytes each, alive on arcs [start, stop) of a circle of `period`; none overlap.

    `start` in [0, period), `stop` unrolled, at most `start + period`. Offsets are sums of given sizes, so
    sizes that are multiples of an alignment give aligned offsets. `aligned`: those of a huge page and more begin
    with one, and smaller ones, which come after them, fill what that leaves between. Source: prototype of thirteen
    models, at most 2 % above the lower bound; no search needed.
    """
    n = len(nbytes)
    width = np.minimum(stop - start, period)
    order = np.lexsort((np.arange(n), -width, start, -nbytes))
    align = np.where(aligned & (nbytes >= HUGE_PAGE_BYTES), HUGE_PAGE_BYTES, 1)
    arcs = _Arcs(nbytes[order], start[order], width[order], align[order], period, np.zeros(n, np.int64))
    done = _place_in_rounds(arcs) if int(width.sum()) <= _BRIEF * n else np.zeros(n, bool)
    _place_one_by_one(arcs, done)
    offsets = np.zeros(n, np.int64)
    offsets[order] = arcs.offset
    return offsets


@dataclass(frozen=True, eq=False)
class _Arcs:
    """What is placed, in the order in which it is. `offset`, at multiples of `align`, is set in place."""

    nbytes: NDArray[np.int64]
    begin: NDArray[np.int64]
    width: NDArray[np.int64]
    align: NDArray[np.int64]
    period: int
    offset: NDArray[np.int64]


def _place_in_rounds(arcs: _Arcs) -> NDArray[np.bool_]:
    """Place together all arcs that share no time with an earlier one that still waits, round by round.

    Those of a round share no time, and what they share one with is placed, so each is where it would be if it were
    placed in its turn. Ends with a round too small to be worth it; returns which are placed.
    """
    n, period = len(arcs.nbytes), arcs.period
    item = np.repeat(np.arange(n), arcs.width)
    time = (arcs.begin[item] + positions(arcs.width)) % period
    done = np.zeros(n, bool)
    while True:
        waits = np.flatnonzero(~done[item])[::-1]
        first = np.zeros(period, np.int64)
        first[time[waits]] = item[waits]  # the earliest is written last
        is_first = first[time[waits]] == item[waits]
        batch = np.flatnonzero(~done & (np.bincount(item[waits], is_first, n) == arcs.width))
        if len(batch) < max(_BRIEF, len(item) // _TIMES_AN_ARC):
            return done
        number = np.full(n, -1)
        number[batch] = np.arange(len(batch))
        mine = np.flatnonzero(number[item] >= 0)
        whose = np.full(period, -1)
        whose[time[mine]] = number[item[mine]]
        beside = np.flatnonzero(done[item] & (whose[time] >= 0))
        low, nbytes = arcs.offset[item[beside]], arcs.nbytes[item[beside]]
        lowest = _lowest_of_each(whose[time[beside]], low, low + nbytes, arcs.nbytes[batch], arcs.align[batch])
        arcs.offset[batch] = lowest
        done[batch] = True


def _lowest_of_each(
    row: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    size: NDArray[np.int64],
    align: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(rows,) lowest multiple of `align` at which `size` bytes fit beside the stretches [low, high) of their row."""
    order = np.lexsort((low, row))
    row, low, high = row[order], low[order], high[order]
    apart = int(high.max(initial=0)) + 1
    reach = np.maximum.accumulate(high + row * apart) - row * apart  # what is of rows before is less
    reach = -(-reach // align[row]) * align[row]
    head = np.diff(row, prepend=-1) != 0
    tails = np.flatnonzero(np.append(head[1:], np.ones(min(len(head), 1), bool)))
    before = np.where(head, 0, np.roll(reach, 1))
    out = np.zeros(len(size), np.int64)
    out[row[tails]] = reach[tails]
    fits = np.flatnonzero(low - before >= size[row])[::-1]  # the lowest is written last
    out[row[fits]] = before[fits]
    return out


class _Placed:
    """Rows of what is placed: first byte, one past the last, and the times [begin, end) that it takes.

    All but the last `_UNSORTED` are kept by first byte: sorting what is nearly sorted takes a tenth of the time.
    """

    def __init__(self, most: int, rows: NDArray[np.int64]) -> None:
        """Begins with these (4, n) rows; there is room for `most`."""
        self._n = rows.shape[1]
        self._rows = np.zeros((4, most), np.int64)
        self._rows[:, : self._n] = rows[:, rows[0].argsort(kind="stable")]
        self._low, self._high, self._begin, self._end = self._rows
        self._stretches = self._rows[:2]

    def add(self, row: tuple[int, int, int, int]) -> None:
        n = self._n
        self._low[n], self._high[n], self._begin[n], self._end[n] = row
        self._n = n + 1
        if self._n % _UNSORTED == 0:
            self._rows[:, : self._n] = self._rows[:, self._low[: self._n].argsort(kind="stable")]

    def beside(self, times: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """(2, rows) first byte and one past the last of what is there at any of these times."""
        begins, ends = self._begin[: self._n], self._end[: self._n]
        begin, end = times[0]
        found = (begins < end) & (ends > begin)
        for begin, end in times[1:]:
            found |= (begins < end) & (ends > begin)
        return self._stretches.take(found.nonzero()[0], axis=1)


def _placed_rows(arcs: _Arcs, which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(4, rows) of these arcs, as `_Placed` has them. What passes the end of the circle has two rows."""
    low, begin = arcs.offset[which], arcs.begin[which]
    end = begin + arcs.width[which]
    rows = np.stack([low, low + arcs.nbytes[which], begin, np.minimum(end, arcs.period)])
    again = rows[:, end > arcs.period]
    again[2], again[3] = 0, end[end > arcs.period] - arcs.period
    return np.concatenate([rows, again], axis=1)


def _place_one_by_one(arcs: _Arcs, done: NDArray[np.bool_]) -> None:
    """Place what is not `done`, one after the other.

    Short arcs are looked up by bucket of time; long ones, which are in many buckets, have a table of their own.
    """
    if done.all():
        return
    bucket = max(-(-arcs.period // _BUCKETS), 1)
    near: list[list[tuple[int, int, int, int]]] = [[] for _ in range(-(-arcs.period // bucket))]
    brief = arcs.width < _FEW * bucket
    for low, high, begin, end in _placed_rows(arcs, done & brief).T.tolist():
        for rows in near[begin // bucket : (end - 1) // bucket + 1]:
            rows.append((low, high, begin, end))
    everything = _Placed(2 * len(done), _placed_rows(arcs, done))
    long = _Placed(2 * len(done), _placed_rows(arcs, done & ~brief))
    waits = np.flatnonzero(~done)
    columns = (waits, *(column[waits] for column in (arcs.nbytes, arcs.begin, arcs.width, arcs.align)))
    for i, size, begin, width, align in zip(*(column.tolist() for column in columns), strict=True):
        end = begin + width
        times = [(begin, end)] if end <= arcs.period else [(begin, arcs.period), (0, end - arcs.period)]
        mine: list[list[tuple[int, int, int, int]]] = []
        if width < _FEW * bucket:
            mine = [rows for b, e in times for rows in near[b // bucket : (e - 1) // bucket + 1]]
            few = [row[:2] for rows in mine for row in rows for b, e in times if row[2] < e and row[3] > b]
            taken = long.beside(times)
            if few:
                taken = np.concatenate((taken, np.array(few, np.int64).T), axis=1)
        else:
            taken = everything.beside(times)
        arcs.offset[i] = offset = _lowest(taken, size, align)
        for time in times:
            row = (offset, offset + size, *time)
            everything.add(row)
            for rows in mine:
                rows.append(row)
            if not mine:
                long.add(row)


def _lowest(taken: NDArray[np.int64], size: int, align: int) -> int:
    """Lowest multiple of `align` at which `size` bytes fit beside the stretches of bytes that are `taken`, (2, n)."""
    if not taken.shape[1]:
        return 0
    low, high = taken.take(taken[0].argsort(kind="stable" if taken.shape[1] > _UNSORTED else None), axis=1)
    if low[0] >= size:
        return 0
    reach = np.maximum.accumulate(high)
    if align > 1:
        reach = -(-reach // align) * align
    fits = low[1:] - reach[:-1] >= size
    at = int(fits.argmax()) if len(fits) else 0
    return int(reach[at]) if len(fits) and fits[at] else int(reach[-1])
