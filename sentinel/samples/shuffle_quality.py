"""How well an order mixes the chunks of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.samples.layout import Layout

NEIGHBOURS = 64
"""Samples that lie together, among which it is told how well an order mixes, whatever is read at once. Of encoded
chunks it is told among the samples of each chunk, however many these are."""


@dataclass(frozen=True)
class ShuffleQuality:
    """`chunks_per_batch`: distinct chunks in a batch, in the mean. `span`: from the first to the last sample of a
    chunk, as a share of the epoch, in the mean over chunks. Of data in random order: near (k - 1) / (k + 1) for chunks
    of k."""

    chunks_per_batch: float
    span: float


def neighbourhoods(layout: Layout) -> Layout:
    """The layout in chunks of NEIGHBOURS samples, the same for each unit of reading; of encoded chunks as they are."""
    return layout if layout.encoded else layout.cut(NEIGHBOURS)


def shuffle_quality(layout: Layout, order: NDArray[np.int64], batch_size: int) -> ShuffleQuality:
    """Of the samples in `order` (m,), at least one, in batches of `batch_size`; a last batch that is not full counts
    too."""
    chunk = layout.chunk_of[order].astype(np.int64)
    at = np.arange(len(order))
    batch = at // batch_size
    distinct = len(np.unique(batch * layout.n_chunks + chunk))
    first, last = np.full(layout.n_chunks, -1), np.full(layout.n_chunks, -1)
    last[chunk] = at  # of several the last one is kept
    first[chunk[::-1]] = at[::-1]
    spans = (last - first)[last >= 0]
    return ShuffleQuality(distinct / (int(batch[-1]) + 1), float(spans.mean()) / len(order))
