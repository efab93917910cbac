"""DeliveryCounts: what a loader delivered and read since a moment, and when the last batches of it were got."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.data.feed_facts import Fed
from sentinel.data.feed_log import FeedLog
from sentinel.data.last_rows import MOST_ROWS, LastRows
from sentinel.data.served_samples import COUNTS, MOMENTS, Served
from sentinel.samples import Feed


class DeliveryCounts:
    """Since `begin`, which is now. `of_rank`: samples that this rank delivers in an epoch."""

    def __init__(self, begin: Feed, of_rank: int) -> None:
        self.begin, self.of_rank, self.since_ns = begin, of_rank, time.monotonic_ns()
        self.served, self.requested_bytes, self.requested = Served(), 0, 0

    def add(self, served: Served, requested: int, nbytes: int) -> None:
        """A batch, of which so many samples and bytes were requested."""
        self.served.add(served)
        self.requested, self.requested_bytes = self.requested + requested, self.requested_bytes + nbytes

    def fed(self, now: Feed) -> Fed:
        """Up to `now`."""
        served = self.served
        feed = Feed(
            kind="executed",
            n_chunks=max(round(now.n_chunks * served.samples / max(self.of_rank, 1)), min(now.n_chunks, 1)),
            samples=served.samples,
            sample_bytes=served.sample_bytes,
            hits=served.hits,
            remote_hits=served.remote_hits,
            source_reads=now.source_reads - self.begin.source_reads,
            source_ranges=now.source_ranges - self.begin.source_ranges,
            source_bytes=now.source_bytes - self.begin.source_bytes + served.direct_bytes,
            direct_reads=served.direct_reads,
            direct_bytes=served.direct_bytes,
            peak_bytes=now.peak_bytes,
            wait_ns=served.wait_ns,
            read_ns=now.read_ns - self.begin.read_ns,
        )
        return Fed(feed, replace(served), self.requested, self.requested_bytes)


class EpochCounts(DeliveryCounts):
    """Of an epoch, with a log of its batches."""

    def __init__(self, begin: Feed, of_rank: int) -> None:
        super().__init__(begin, of_rank)
        self._batches = LastRows((*MOMENTS, *COUNTS))

    def add(self, served: Served, requested: int, nbytes: int) -> None:
        """See DeliveryCounts."""
        super().add(served, requested, nbytes)
        self._batches.add(*vars(served.when).values(), *served.counts.values())

    def log(self, now: Feed, reads: NDArray[np.void]) -> FeedLog:
        """Up to `now`. `reads`: the last ones of the source, with those of before and after."""
        own = reads[(reads["stop_ns"] >= self.since_ns) & (reads["number"] <= now.source_reads)]  # as they are counted
        has_all = len(reads) < MOST_ROWS or int(reads["number"][0]) <= self.begin.source_reads
        return FeedLog(own, self._batches.kept, has_all, self._batches.are_all)
