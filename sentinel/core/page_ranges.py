"""Cut a large tensor where the density of its touched pages changes. Pure.

With random rows a step touches a sprinkling of cold pages, and others in the next step: which page was touched tells
little, how densely a run of pages is touched tells much. So a tensor is cut into runs in which each page is as likely
to be touched as any other, by the shortest description: told run by run, a run of n pages of which a layer touches k
takes n·H(k/n) bits (H: the entropy of a coin), and a cut is made where it saves more bits than it costs to tell (its
place, and one more density a layer: half a logarithm of the pages each; Rissanen 1978). The best cut first, then the
best within its halves, as trees are grown. Layers that touch the very same pages count as one.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

LEAST_PAGES = 16
"""A range has at least 16 pages (64 KiB), or the whole tensor: smaller ranges move more slowly."""
MOST_RANGES = 16
"""Of one tensor."""
_MOST_BINS = 1 << 15


def cut_pages(
    page: NDArray[np.int64],
    layer: NDArray[np.int64],
    n_pages: int,
    together: int = 1,
    npages: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """(ranges + 1,) page indexes, from 0 to `n_pages`, at which ranges of like density begin and end.

    `page`, `npages`, `layer`: (runs,) of each run of pages of the tensor that was touched in a layer, no page twice;
    without `npages`, of each page. `together`: pages that the tracker sees as one; they are one observation.
    """
    width = LEAST_PAGES * max(-(-n_pages // (LEAST_PAGES * _MOST_BINS)), 1)
    n_bins = max(n_pages // width, 1)  # the last one is wider: no range is smaller than `width`
    ends = np.append(np.arange(n_bins) * width, n_pages)
    patterns = _patterns(page, layer, np.ones(len(page), np.int64) if npages is None else npages)
    touched = np.array([_upto(start, stop, ends) for start, stop in patterns]).reshape(-1, n_bins + 1)
    cuts = _grow(touched / together, ends / together)
    return ends[cuts].astype(np.int64)


def _upto(start: NDArray[np.int64], stop: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many pages of the sorted runs [start, stop) lie before each of `ends`; before the last one all do."""
    before = np.append(0, (stop - start).cumsum())
    at = np.searchsorted(start, ends, "right")
    beyond = np.maximum(stop[at - 1] - ends, 0) if len(stop) else np.zeros(len(ends), np.int64)
    found = before[at] - np.where(at > 0, beyond, 0)
    found[-1] = before[-1]
    return found


def _patterns(
    page: NDArray[np.int64], layer: NDArray[np.int64], npages: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Starts and stops of what was touched in each layer. Layers that touch the same pages (a lookup, and the update of
    what was looked up) are one observation, not several: counted twice, chance would look like structure."""
    if not len(page):
        return [(page, page)]
    order = np.lexsort((page, layer))
    page, layer, npages = page[order], layer[order], npages[order]
    edges = np.flatnonzero(np.diff(layer)) + 1
    found: dict[bytes, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for start, count in zip(np.split(page, edges), np.split(npages, edges), strict=True):
        stop = start + count
        apart = start[1:] != stop[:-1]  # runs that touch are one: what else was seen of them tells nothing here
        start, stop = start[np.append(True, apart)], stop[np.append(apart, True)]
        found.setdefault(start.tobytes() + stop.tobytes(), (start, stop))
    return list(found.values())


def _grow(touched: NDArray[np.float64], ends: NDArray[np.float64]) -> list[int]:
    """Bin indexes of the cuts, both ends included. `touched`: (layers, bins + 1), `ends`: (bins + 1,), running sums."""
    n_bins = len(ends) - 1
    price = np.log2(max(n_bins, 2)) + 0.5 * len(touched) * np.log2(max(float(ends[-1]), 2.0))
    cuts = [0, n_bins]
    open_: list[tuple[float, int, int, int]] = []

    def offer(low: int, high: int) -> None:
        saved, at = _best_cut(touched, ends, low, high)
        if saved > price:
            heapq.heappush(open_, (-saved, low, at, high))

    offer(0, n_bins)
    while open_ and len(cuts) <= MOST_RANGES:
        _, low, at, high = heapq.heappop(open_)
        cuts.append(at)
        offer(low, at)
        offer(at, high)
    return sorted(cuts)


def _best_cut(touched: NDArray[np.float64], ends: NDArray[np.float64], low: int, high: int) -> tuple[float, int]:
    """Bits that the best cut of bins [low, high) saves, and where it is; the first among equals."""
    if high - low < 2:
        return 0.0, low
    within = slice(low + 1, high)
    left, right = touched[:, within] - touched[:, [low]], touched[:, [high]] - touched[:, within]
    pages_left, pages_right = ends[within] - ends[low], ends[high] - ends[within]
    whole = _bits(touched[:, high] - touched[:, low], ends[high] - ends[low]).sum()
    saved = whole - (_bits(left, pages_left) + _bits(right, pages_right)).sum(axis=0)
    at = int(saved.argmax())
    return float(saved[at]), low + 1 + at


def _bits(touched: NDArray[np.float64], pages: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    """Bits that tell which `touched` of `pages` were, at their own density."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hit, missed = np.log2(touched / pages), np.log2(1.0 - touched / pages)
        found: NDArray[np.float64] = -np.nan_to_num(touched * hit) - np.nan_to_num((pages - touched) * missed)
    return found
