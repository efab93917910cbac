"""Page-level false sharing: tensors of unlike hotness on one page. Pure.

A page is *hot* in a layer if a tensor that is used in the layer has bytes on it; a tensor is *cold* in a layer that it
lives through without being used. Whoever counts or moves pages takes the cold bytes of a hot page along: the paper's
third observation (J. Ren et al., HPCA 2021, section III).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.ragged import ranges
from sentinel.core.units import PAGE_BYTES

PLACED_DTYPE = np.dtype(
    [
        ("address", "<i8"),  # of its first byte
        ("nbytes", "<i8"),
        ("start", "<i4"),  # layers [start, stop) that it lives through from end to end, unrolled; none if start == stop
        ("stop", "<i4"),
    ]
)


@dataclass(frozen=True)
class FalseSharing:
    """`pages`: those that in some layer were hot and held cold bytes. By layer: how many, and those cold bytes.

    `tensors`: how many were placed. `how`: where their addresses are from.
    """

    pages: int
    layer_pages: tuple[int, ...]
    layer_cold_bytes: tuple[int, ...]
    tensors: int = 0
    how: str = ""

    @property
    def nbytes(self) -> int:
        """Of the pages."""
        return self.pages * PAGE_BYTES


def false_sharing(placed: NDArray[Any], used: NDArray[np.int64], n_layers: int, how: str = "") -> FalseSharing:
    """What `placed`, of PLACED_DTYPE, shares. `used`: (m, 2) rows of `placed` and layers that use them.

    Two tensors may have one address if they do not live at the same time. Only a tensor's first and last page can be
    shared, so pages between them are not looked at.
    """
    page, row, nbytes = _edges(placed)
    used = np.unique(used.reshape(-1, 2), axis=0)
    hot, cold = _cold_bytes(page, row, nbytes, placed, used, n_layers)
    hot, cold = hot[cold > 0], cold[cold > 0]
    by_layer = np.bincount(hot % n_layers, cold, n_layers).astype(np.int64)
    return FalseSharing(
        pages=len(np.unique(hot // n_layers)),
        layer_pages=tuple(np.bincount(hot % n_layers, minlength=n_layers).tolist()),
        layer_cold_bytes=tuple(by_layer.tolist()),
        tensors=len(placed),
        how=how,
    )


def _edges(placed: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Page, row of `placed` and bytes of that row on that page, for first and last pages that several rows have."""
    begin, end = placed["address"].astype(np.int64), placed["address"] + placed["nbytes"]
    first, last = begin // PAGE_BYTES, (end - 1) // PAGE_BYTES
    apart = last > first
    rows = np.arange(len(placed))
    page = np.concatenate([first, last[apart]])
    row = np.concatenate([rows, rows[apart]])
    upto = np.minimum(end, (first + 1) * PAGE_BYTES)
    nbytes = np.concatenate([upto - begin, (end - last * PAGE_BYTES)[apart]])
    _, index, count = np.unique(page, return_inverse=True, return_counts=True)
    shared = count[index] > 1
    return index[shared].astype(np.int64), row[shared], nbytes[shared]


def _cold_bytes(
    page: NDArray[np.int64],
    row: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    placed: NDArray[Any],
    used: NDArray[np.int64],
    n_layers: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(k,) page * n_layers + layer of all hot pages, sorted, and (k,) the cold bytes on them."""
    # each (row, layer) of `used` with each edge page of that row
    order = np.argsort(row, kind="stable")
    page, row, nbytes = page[order], row[order], nbytes[order]
    low, high = np.searchsorted(row, used[:, 0]), np.searchsorted(row, used[:, 0], "right")
    times = high - low
    at = ranges(low, times)
    layer = np.repeat(used[:, 1], times)
    hot = np.unique(page[at] * n_layers + layer)
    alive = np.zeros(len(hot) + 1, np.int64)  # bytes that live through the layer, as differences along `hot`
    start, stop = placed["start"][row].astype(np.int64), placed["stop"][row].astype(np.int64)
    for begin, end in ((start, np.minimum(stop, n_layers)), (np.zeros_like(start), np.maximum(stop - n_layers, 0))):
        some = end > begin
        np.add.at(alive, np.searchsorted(hot, (page * n_layers + begin)[some]), nbytes[some])
        np.add.at(alive, np.searchsorted(hot, (page * n_layers + end)[some]), -nbytes[some])
    cold = alive.cumsum()[:-1]
    through = (start[at] <= layer) & (layer < stop[at]) | (layer + n_layers < stop[at])
    np.add.at(cold, np.searchsorted(hot, (page[at] * n_layers + layer)[through]), -nbytes[at][through])
    return hot, cold
