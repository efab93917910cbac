"""Packing by lifetime on a circle: largest first, at the lowest address that fits.

Of one size the earlier born go first: intervals of one size then fill no more places than are ever alive at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES

SMALL_ALIGN = 512
"""Slots below a page are packed at this alignment, in pages of their own."""

_BUCKETS = 512

_MANY = 20_000

_ALIGNED_SHARE = 16
"""Aligning to huge pages may take one part in so many of memory more than packing without, and twice the addresses."""

_FEW = 4
"""An arc of fewer buckets is kept in each of them, a longer one apart."""


class _Index:
    """Growing integer columns of what is placed, by address: first byte, one past the last, arc begin and width."""

    def __init__(self) -> None:
        self.rows = np.zeros((4, 16), np.int64)
        self.n = 0

    def add(self, row: tuple[int, int, int, int]) -> None:
        if self.n == self.rows.shape[1]:
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)], axis=1)
        at = int(self.rows[0, : self.n].searchsorted(row[0], side="right"))
        self.rows[:, at + 1 : self.n + 1] = self.rows[:, at : self.n]
        self.rows[:, at] = row
        self.n += 1

    def placed(self) -> NDArray[np.int64]:
        return self.rows[:, : self.n]


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
    offsets = np.zeros(n, np.int64)
    if n == 0:
        return offsets
    width = np.minimum(stop - start, period)
    bucket = max(-(-period // _BUCKETS), 1)
    buckets = [_Index() for _ in range(-(-period // bucket))]
    long, everything = _Index(), _Index()
    order = np.lexsort((np.arange(n), -width, start, -nbytes))
    firsts, lasts = start // bucket, (start + width - 1) // bucket
    columns = (nbytes, start, width, firsts, lasts)
    for i, size, begin, wide, first, last in zip(order.tolist(), *(c[order].tolist() for c in columns), strict=True):
        near = [b % len(buckets) for b in range(first, last + 1)] if last - first < _FEW else []
        found = (
            [index.placed() for index in (*(buckets[b] for b in near), long) if index.n]
            if near
            else [everything.placed()]
        )
        offset = 0
        if found:
            placed = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
            align = HUGE_PAGE_BYTES if aligned and size >= HUGE_PAGE_BYTES else 1
            offset = _lowest(placed, size, begin, wide, period, len(found) == 1, align)
        offsets[i] = offset
        row = (offset, offset + size, begin, wide)
        everything.add(row)
        for index in [buckets[b] for b in near] or [long]:
            index.add(row)
    return offsets


def _lowest(
    found: NDArray[np.int64], size: int, begin: int, wide: int, period: int, sorted_already: bool, align: int
) -> int:
    """Lowest multiple of `align` at which `size` bytes fit beside those of `found` that share a time with the arc."""
    if found.shape[1] == 0:
        return 0
    ahead = found[2] - begin  # of their begin, from ours, round the circle
    ahead[ahead < 0] += period
    clash = found[:2, (ahead < wide) | (ahead + found[3] > period)]
    if clash.shape[1] == 0:
        return 0
    low, high = clash if sorted_already else clash[:, clash[0].argsort(kind="stable")]
    reach = np.maximum.accumulate(high)
    if low[0] >= size:
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
