"""Slots and pages, packed by lifetime: what is negligible is stacked, the rest is placed by `lowest_fit`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from sentinel.planner.lowest_fit import pack

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
