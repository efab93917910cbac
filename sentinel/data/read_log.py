"""ReadLog: how many chunks were read, and when each of the last ones was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.data.last_rows import LastRows
from sentinel.samples import Feed

READ = ("start_ns", "stop_ns", "chunk", "nbytes", "number")
"""Columns of a read: when it began and ended by CLOCK_MONOTONIC, bytes read of its chunk, -1 where it failed; `number`:
reads that were done by then."""
NO_READS = LastRows(READ, 0).kept


class ReadCounts(NamedTuple):
    """Chunks read, in how many ranges, their bytes, reads that failed, and the time in which at least one chunk was
    being read."""

    reads: int = 0
    ranges: int = 0
    read_bytes: int = 0
    failed: int = 0
    read_ns: int = 0

    def feed(self, n_chunks: int, peak_bytes: int = 0) -> Feed:
        """These as counts of what was done, of a layout of so many chunks."""
        return Feed(
            kind="executed",
            n_chunks=n_chunks,
            source_reads=self.reads,
            source_ranges=self.ranges,
            source_bytes=self.read_bytes,
            peak_bytes=peak_bytes,
            read_ns=self.read_ns,
        )


class Got:
    """What a read got; nothing until it is told."""

    ranges = nbytes = 0
    done = False

    def told(self, ranges: int, nbytes: int) -> None:
        """It is done, by so many ranges of together `nbytes`."""
        self.ranges, self.nbytes, self.done = ranges, nbytes, True


class ReadLog:
    """Of several threads that read, since it was made."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock, self._lock, self._last = clock, threading.Lock(), LastRows(READ)
        self._under_way, self._since, self._busy_ns = 0, 0, 0
        self._reads = self._ranges = self._read_bytes = self._failed = 0

    @contextmanager
    def reading(self, chunk: int) -> Iterator[Got]:
        """Around the read of a chunk, which tells what it got; one that did not has failed."""
        got = Got()
        with self._lock:
            begun = self._clock()
            if not self._under_way:
                self._since = begun
            self._under_way += 1
        try:
            yield got
        finally:
            with self._lock:
                ended = self._clock()
                self._under_way -= 1
                if not self._under_way:
                    self._busy_ns += ended - self._since
                self._reads += got.done
                self._ranges += got.ranges
                self._read_bytes += got.nbytes
                self._failed += not got.done
                self._last.add(begun, ended, chunk, got.nbytes if got.done else -1, self._reads)

    @property
    def counts(self) -> ReadCounts:
        """What was done."""
        with self._lock:
            busy_ns = self._busy_ns + (self._clock() - self._since if self._under_way else 0)
            return ReadCounts(self._reads, self._ranges, self._read_bytes, self._failed, busy_ns)

    @property
    def last(self) -> NDArray[np.void]:
        """(rows,) of READ, the last reads that ended."""
        with self._lock:
            return self._last.kept
