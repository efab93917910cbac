"""Runs of pages that were touched in a layer, in bounded memory: never one row a page. Pure.

A step of 128 GiB touches its 33 million pages several times each, mostly one after the other. A tracker tells the runs
of each mark by address; what is asked here (the runs of a layer within some pages) is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.ragged import ranges
from sentinel.core.trace import PAGE_RUN_DTYPE, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE

PAGE_DTYPE = np.dtype([("layer", "<i4"), ("page", "<i8"), ("reads", "<i4"), ("writes", "<i4")])
"""One page in one layer, where there are few; `reads` and `writes`: 1, 0, or -1 for unknown."""

CHUNK_RUNS = 1 << 18
"""Looked at together: some tens of MiB of columns."""
_MOST_STRETCHES = 64
"""Of one layer, on average; where runs are less in order, they are sorted first."""


def in_chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Views of `rows`, CHUNK_RUNS at a time."""
    for low in range(0, len(rows), CHUNK_RUNS):
        yield rows[low : low + CHUNK_RUNS]


class Runs(NamedTuple):
    """Columns (n,) of runs of one layer: first pages, sorted; numbers of pages; what was seen. No two overlap."""

    page: NDArray[np.int64]
    npages: NDArray[np.int64]
    seen: NDArray[np.int64]

    @property
    def stop(self) -> NDArray[np.int64]:
        """The page after each run."""
        return self.page + self.npages

    def of(self, which: Any) -> Runs:
        """Those that a mask, a slice or indexes choose."""
        return Runs(self.page[which], self.npages[which], self.seen[which])


def cut(runs: Runs, places: NDArray[np.int64]) -> tuple[Runs, NDArray[np.int64]]:
    """`runs` with none that goes on past one of the sorted pages `places`; and (n,) which run each piece is of."""
    of = np.arange(len(runs.page))
    if not len(of):
        return runs, of
    at = np.searchsorted(runs.page, places, "right") - 1
    inside = (at >= 0) & (places > runs.page[at]) & (places < runs.stop[at])
    if not inside.any():
        return runs, of
    at, places = at[inside], places[inside]
    of = np.insert(of, at + 1, at)
    page = np.insert(runs.page, at + 1, places)
    stop = np.minimum(runs.stop[of], np.append(page[1:], np.iinfo(np.int64).max))
    return Runs(page, stop - page, runs.seen[of]), of


def joined(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of PAGE_RUN_DTYPE in any order as sorted ones that do not overlap: what was seen of a page twice in a layer
    is seen once."""
    if not len(rows):
        return rows
    layers, at = np.unique(rows["layer"], return_inverse=True)  # a layer's number may be anything
    span = int((rows["page"] + rows["npages"]).max()) + 1
    start = at * span + rows["page"]
    stop = start + rows["npages"]
    edges = np.unique(np.concatenate([start, stop]))
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, stop)

    def covered(some: NDArray[np.bool_]) -> NDArray[np.bool_]:
        opened = np.bincount(low[some], minlength=len(edges)) - np.bincount(high[some], minlength=len(edges))
        return np.asarray(opened.cumsum()[:-1] > 0)

    touched = covered(np.ones(len(rows), bool))
    known = covered((rows["seen"] & SEEN_UNKNOWN) == 0)
    seen = covered((rows["seen"] & SEEN_READ) != 0) * SEEN_READ + covered((rows["seen"] & SEEN_WRITE) != 0) * SEEN_WRITE
    found = np.zeros(int(touched.sum()), PAGE_RUN_DTYPE)
    at, found["page"] = np.divmod(edges[:-1][touched], span)
    found["layer"] = layers[at]
    found["npages"] = np.diff(edges)[touched]
    found["seen"] = (seen + ~known * SEEN_UNKNOWN)[touched]
    return found


class RunIndex:
    """Finds runs by layer and page. `rows`: of PAGE_RUN_DTYPE, in any order; quickly where each layer's are sorted.

    `touches`: (n_layers,) pages touched in each layer.
    """

    def __init__(self, rows: NDArray[Any], n_layers: int) -> None:
        self._n_layers = n_layers
        self._index(rows)
        if sum(map(len, self._stretches)) > _MOST_STRETCHES * n_layers:
            self._index(joined(rows))
        self.touches = np.zeros(n_layers, np.int64)
        for layer in range(n_layers):
            if len(self._stretches[layer]) == 1:
                low, high = self._stretches[layer][0]
                self.touches[layer] = self._npages[low:high].sum()
            else:
                self.touches[layer] = sum(int(runs.npages.sum()) for runs in self.chunks(layer))

    def _index(self, rows: NDArray[Any]) -> None:
        self._rows = rows
        self._page, self._npages, self._seen = rows["page"], rows["npages"], rows["seen"]
        self._stretches: list[list[tuple[int, int]]] = [[] for _ in range(self._n_layers)]
        cuts = [0, *_breaks(rows), len(rows)] if len(rows) else []
        for low, high in pairwise(cuts):
            self._stretches[int(rows["layer"][low])].append((low, high))

    def chunks(self, layer: int) -> Iterator[Runs]:
        """The runs of `layer`, by address, about CHUNK_RUNS at a time."""
        stretches = self._stretches[layer]
        if len(stretches) == 1:
            low, high = stretches[0]
            for at in range(low, high, CHUNK_RUNS):
                yield self._columns(at, min(at + CHUNK_RUNS, high))
        elif stretches:
            low, high = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
            places = [0, *self._page[low + CHUNK_RUNS : high : CHUNK_RUNS].tolist(), np.iinfo(np.int64).max]
            for first, stop in pairwise(places):
                yield self.window(layer, first, stop)

    def window(self, layer: int, first: int, stop: int) -> Runs:
        """What was touched in `layer` of the pages [first, stop)."""
        found = []
        for low, high in self._stretches[layer]:
            begin = bisect_right(self._page, first, low, high)
            if begin > low and int(self._page[begin - 1]) + int(self._npages[begin - 1]) > first:
                begin -= 1
            end = bisect_left(self._page, stop, begin, high)
            if end > begin:
                found.append(_clipped(self._columns(begin, end), first, stop))
        if len(found) == 1:
            return found[0]
        rows = np.zeros(sum(len(runs.page) for runs in found), PAGE_RUN_DTYPE)
        for name in Runs._fields:
            rows[name] = np.concatenate([getattr(runs, name) for runs in found]) if found else 0
        rows = joined(rows)
        return Runs(*(rows[name].astype(np.int64) for name in Runs._fields))

    def _columns(self, low: int, high: int) -> Runs:
        part = slice(low, high)
        return Runs(
            self._page[part].astype(np.int64), self._npages[part].astype(np.int64), self._seen[part].astype(np.int64)
        )


def _clipped(runs: Runs, first: int, stop: int) -> Runs:
    """Sorted runs that reach into [first, stop), without what lies outside."""
    page, end = np.maximum(runs.page, first), np.minimum(runs.stop, stop)
    return Runs(page, end - page, runs.seen)


def _breaks(rows: NDArray[Any]) -> list[int]:
    """Where a run is of another layer than the one before, or does not lie beyond it."""
    found: list[int] = []
    for low in range(0, len(rows) - 1, CHUNK_RUNS):
        part = rows[low : low + CHUNK_RUNS + 1]
        page, layer = part["page"], part["layer"]
        apart = (layer[1:] != layer[:-1]) | (page[1:] < page[:-1] + part["npages"][:-1])
        found += (low + 1 + np.flatnonzero(apart)).tolist()
    return found


def pages_of_runs(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of PAGE_DTYPE, one a page and layer, sorted so, of rows of PAGE_RUN_DTYPE. Where there are few."""
    rows = joined(rows)
    of = np.repeat(np.arange(len(rows)), rows["npages"])
    found = np.zeros(len(of), PAGE_DTYPE)
    found["layer"] = rows["layer"][of]
    found["page"] = ranges(rows["page"], rows["npages"])
    unknown = (rows["seen"] & SEEN_UNKNOWN) != 0
    for name, bit in (("reads", SEEN_READ), ("writes", SEEN_WRITE)):
        found[name] = np.where(unknown, -1, (rows["seen"] & bit) != 0)[of]
    return found
