"""A rank's share of an epoch as a run of chunks, for the orders in which it matters which rank reads which chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.ragged import ranges
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.staging import Staging


@dataclass(frozen=True, eq=False)
class ChunkSlice:
    """Chunks in the order in which the permutation first meets them, all samples of each, cut in equal parts for the
    ranks: this rank's part. So at most `world` - 1 chunks are read by two ranks. Where the samples do not divide, the
    last part ends with the first samples of all, or with `drop_last` the last samples are dropped.

    `run`: (m,) which chunk of this slice each sample is of, from 0; a chunk that comes twice counts twice.
    """

    samples: NDArray[np.int64]
    run: NDArray[np.int64]
    chunk: NDArray[np.int64]
    """(n_runs,) The chunk of the layout."""
    when: NDArray[np.int64]
    """(m,) Where the permutation has the sample."""

    @classmethod
    def of(cls, layout: Layout, order: Order, permutation: NDArray[np.int64]) -> ChunkSlice:
        """The slice of `order.rank`."""
        n = len(permutation)
        samples, when = samples_by_chunk(layout, permutation)
        share = order.per_rank(n)
        samples = samples[np.arange(order.rank * share, (order.rank + 1) * share) % n]
        of_chunk = layout.chunk_of[samples].astype(np.int64)
        begins = np.diff(of_chunk, prepend=-1) != 0
        return cls(samples, begins.cumsum() - 1, of_chunk[begins], when[samples])

    def staging(self, room: Room, at: NDArray[np.int64], read: NDArray[np.int64], chunk: NDArray[np.int64]) -> Staging:
        """Where position p delivers sample `at[p]` of this slice, brought by read `read[p]`, which takes `chunk[read]`;
        each stays for one use. Each read delivers some."""
        counts = np.bincount(read, minlength=len(chunk))
        grouped = np.argsort(read, kind="stable")
        begin = np.cumsum(counts) - counts
        by_due = np.argsort(grouped[begin])
        counts = counts[by_due]
        until = grouped[ranges(begin[by_due], counts)]
        stay_at = np.empty(len(at), np.int64)
        stay_at[until] = np.arange(len(at))
        order = self.samples[at]
        of_read = np.repeat(np.arange(len(counts)), counts)
        return Staging(room, order, chunk[by_due], grouped[begin][by_due], order[until], of_read, until, stay_at)


def samples_by_chunk(layout: Layout, permutation: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) all samples, those of a chunk together, in the order in which the permutation first meets the chunks; and
    (n,) where the permutation has each sample."""
    when = np.empty(len(permutation), np.int64)
    when[permutation] = np.arange(len(permutation))
    chunks = np.argsort(np.minimum.reduceat(when, layout.first_sample[:-1]))
    return ranges(layout.first_sample[:-1][chunks], layout.chunk_samples[chunks].astype(np.int64)), when


def peak_pages(pages: NDArray[np.int64], due: NDArray[np.int64], until: NDArray[np.int64], lead: int) -> int:
    """Most pages alive at once, of stays that begin `lead` positions before `due` and end after `until`."""
    length = int(until.max(initial=0)) + 2
    change = np.bincount(np.maximum(due - lead, 0), pages, length) - np.bincount(until + 1, pages, length)
    return int(change.cumsum().max(initial=0))
