"""Packing by lifetime on a circle: largest first, at the lowest address that fits.

Of one size the earlier born go first: intervals of one size then fill no more places than are ever alive at once.
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
"""Aligning to huge pages may take one part in so many of memory more than packing without, and twice the addresses."""

_FEW = 4
"""An arc shorter than so many buckets is kept in each of them, a longer one apart."""

_UNSORTED = 512
"""Rows of what is placed that are not in order yet."""

_BRIEF = 16
"""Arcs so long on average, or shorter, are placed in rounds, as long as a round places as many."""


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
        if len(batch) < _BRIEF:
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

    What passes the end of the circle has two rows. All but the last `_UNSORTED` are kept by first byte: sorting what is
    nearly sorted takes a tenth of the time.
    """

    def __init__(self, most: int) -> None:
        self._rows = np.zeros((4, 2 * most), np.int64)
        self._low, self._high, self._begin, self._end = self._rows
        self._n = 0

    def add(self, row: tuple[int, int, int, int]) -> None:
        n = self._n
        self._low[n], self._high[n], self._begin[n], self._end[n] = row
        self._n = n + 1
        if self._n % _UNSORTED == 0:
            self._rows[:, : self._n] = self._rows[:, self._low[: self._n].argsort(kind="stable")]

    def beside(self, times: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows,) first byte and one past the last of what is there at any of these times."""
        begins, ends = self._begin[: self._n], self._end[: self._n]
        begin, end = times[0]
        found = (begins < end) & (ends > begin)
        for begin, end in times[1:]:
            found |= (begins < end) & (ends > begin)
        rows = found.nonzero()[0]
        return self._low[rows], self._high[rows]


def _place_one_by_one(arcs: _Arcs, done: NDArray[np.bool_]) -> None:
    """Place what is not `done`, one after the other.

    Short arcs are looked up by bucket of time; long ones, which are in many buckets, have a table of their own.
    """
    if done.all():
        return
    bucket = max(-(-arcs.period // _BUCKETS), 1)
    near: list[list[tuple[int, int, int, int]]] = [[] for _ in range(-(-arcs.period // bucket))]
    everything, long = _Placed(len(done)), _Placed(len(done))
    columns = (arcs.nbytes, arcs.begin, arcs.width, arcs.align, arcs.offset, done)
    order = np.argsort(~done, kind="stable")  # what is placed already comes first
    for i, size, begin, width, align, offset, placed in zip(
        order.tolist(), *(column[order].tolist() for column in columns), strict=True
    ):
        end = begin + width
        times = [(begin, end)] if end <= arcs.period else [(begin, arcs.period), (0, end - arcs.period)]
        brief = width < _FEW * bucket
        mine = [rows for b, e in times for rows in near[b // bucket : (e - 1) // bucket + 1]] if brief else []
        if not placed:
            low, high = (long if mine else everything).beside(times)
            few = [row[:2] for rows in mine for row in rows for b, e in times if row[2] < e and row[3] > b]
            if few:
                more = np.array(few, np.int64)
                low, high = np.append(low, more[:, 0]), np.append(high, more[:, 1])
            arcs.offset[i] = offset = _lowest(low, high, size, align)
        for time in times:
            row = (offset, offset + size, *time)
            everything.add(row)
            for rows in mine:
                rows.append(row)
            if not mine:
                long.add(row)


def _lowest(low: NDArray[np.int64], high: NDArray[np.int64], size: int, align: int) -> int:
    """Lowest multiple of `align` at which `size` bytes fit beside the rows [low, high) that are taken."""
    order = low.argsort(kind="stable" if len(low) > _UNSORTED else None)
    low, reach = low[order], np.maximum.accumulate(high[order])
    if not len(low) or low[0] >= size:
        return 0
    if align > 1:
        reach = -(-reach // align) * align
    gaps = low[1:] - reach[:-1] >= size
    at = int(gaps.argmax()) if len(gaps) else 0
    return int(reach[at]) if len(gaps) and gaps[at] else int(reach[-1])


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
    columns = nbytes[rows], start[rows], stop[rows]
    offsets[rows] = pack(*columns, period)
    if (offsets % HUGE_PAGE_BYTES != 0)[nbytes >= HUGE_PAGE_BYTES].any():
        aligned = pack(*columns, period, aligned=True)
        extent, used = _extent_and_used(offsets[rows], nbytes[rows])
        aligned_extent, aligned_used = _extent_and_used(aligned, nbytes[rows])
        if aligned_extent <= 2 * extent and aligned_used <= used + used // _ALIGNED_SHARE:
            offsets[rows] = aligned
    extent = int((offsets + nbytes)[rows].max(initial=0))
    offsets[stacked] = extent + _stack(nbytes[stacked], start[stacked], stop[stacked], period)
    return offsets


def _extent_and_used(offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> tuple[int, int]:
    """(bytes of addresses, bytes of them that anybody ever uses) of what is packed."""
    order = np.argsort(offsets, kind="stable")
    low, high = offsets[order], (offsets + nbytes)[order]
    reach = np.maximum.accumulate(high)
    gaps = np.maximum(low[1:] - reach[:-1], 0).sum() + low[0]
    return int(reach[-1]), int(reach[-1] - gaps)


def pack_slots(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> tuple[NDArray[np.int64], int]:
    """(offsets, extent): slots of a page and more at whole pages; above them smaller ones, `SMALL_ALIGN`ed.

    The smallest, which together hold next to nothing, are stacked without a search.
    """
    offsets = np.zeros(len(nbytes), np.int64)
    small = nbytes < PAGE_BYTES
    align = np.where(small, SMALL_ALIGN, PAGE_BYTES)
    sizes = -(-nbytes // align) * align
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
    none = np.zeros(len(sizes), bool)
    if len(sizes) < 256:
        return none
    share = 400 if len(sizes) < _MANY else 150
    allowed = live_peak_bytes(sizes, start, stop, period) // share
    chosen = none
    for exponent in range(6, 63):
        under = sizes <= 1 << exponent
        if int((_stack(sizes[under], start[under], stop[under], period) + sizes[under]).max(initial=0)) > allowed:
            break
        chosen = under
        if under.all():
            break
    return chosen


def _stack(
    nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int
) -> NDArray[np.int64]:
    """Offsets as `pack` gives them, by a rule that needs no search: long arcs never share, short ones by bucket."""
    bucket = max(-(-period // _BUCKETS), 1)
    long = (start // bucket != (stop - 1) // bucket) | (stop - start > period)
    out = np.zeros(len(nbytes), np.int64)
    out[long] = np.cumsum(nbytes[long]) - nbytes[long]
    rows = np.flatnonzero(~long)
    rows = rows[np.argsort(start[rows] // bucket, kind="stable")]
    group = start[rows] // bucket
    total = np.cumsum(nbytes[rows]) - nbytes[rows]
    head = np.searchsorted(group, group)
    out[rows] = total - total[head] + int(nbytes[long].sum()) if len(rows) else 0
    return out


def live_peak_bytes(nbytes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], period: int) -> int:
    """Most bytes alive at one time: no packing is smaller."""
    row = np.zeros(len(nbytes), np.int64)
    return int(ring_sum(row, start, stop, nbytes, 1, period).max(initial=0))
