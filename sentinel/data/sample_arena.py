"""The memory that staged samples lie in: one memfd a job, which its reader fills and its workers copy from.

All of it is reserved before the first read, so that no access can fail for want of memory, and sealed, so that nobody
can shorten it. It has no name in any file system: it goes with the last process that has it open, however that ends.

    counters   what the reader has done
    entries    a mailbox a sample: 0, or where its bytes are: the number of the read that brought them in the upper 32
               bits, its first page + 1 in the lower ones
    taken      a position of the epoch: 1 once its sample was copied
    following  a page: the next one of the same sample
    pages      the bytes. A sample has as many pages as it needs, anywhere, so that no room is lost between samples

Only the reader writes entries and pages. Who copies checks the entry before and after: if it is the same, so were the
bytes, for no two reads have one number.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.units import PAGE_BYTES, format_bytes, page_ceil

MOST_SAMPLES = 100_000_000
"""An entry takes 9 bytes a sample, whether the sample is in memory or not: 0.9 GB for these."""
READS, READ_BYTES, PEAK_PAGES, PULSE, RUNNING = range(5)
"""Counters: chunks read and their bytes, most pages in use, what rises while the reader works, whether it does."""

_COUNTERS = 8
_LOW = (1 << 32) - 1
_PAGES_A_SAMPLE = 16
"""In the mean. The last page of a sample is half empty in the mean, so a 32nd of the room is lost."""
_SMALLEST_PAGE = 64
_F_ADD_SEALS = 1033
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW: Python names them from 3.13 on


@dataclass(frozen=True)
class ArenaShape:
    """What an arena has room for: entries for `n_samples`, and `n_pages` of `page_bytes`."""

    n_samples: int
    n_pages: int
    page_bytes: int

    @property
    def parts(self) -> tuple[int, ...]:
        """Bytes of counters, entries, taken, following and pages, each a multiple of the kernel's pages."""
        n, pages = self.n_samples, self.n_pages
        return tuple(map(page_ceil, (8 * _COUNTERS, 8 * n, n, 4 * pages, pages * self.page_bytes)))

    @property
    def nbytes(self) -> int:
        """Of the whole arena."""
        return sum(self.parts)


def shape_within(memory_bytes: int, sample_nbytes: NDArray[np.int64]) -> ArenaShape:
    """The largest useful arena of at most `memory_bytes` for samples of these sizes; 0 pages if there is room for none.

    Raises UsageError for more samples than MOST_SAMPLES.
    """
    if len(sample_nbytes) > MOST_SAMPLES:
        raise UsageError(
            f"the data set has {len(sample_nbytes)} samples, each of which needs an entry in memory",
            f"give at most {MOST_SAMPLES} at once",
        )
    page = page_bytes_for(sample_nbytes)
    left = memory_bytes - sum(ArenaShape(len(sample_nbytes), 0, page).parts) - 2 * PAGE_BYTES  # rounded up twice
    of_samples = -(-sample_nbytes // page)
    useful = int(of_samples.sum()) * 9 // 8 + int(of_samples.max())  # all samples, and some on their way
    return ArenaShape(len(sample_nbytes), min(max(left, 0) // (page + 4), useful, _LOW - 1), page)


def page_bytes_for(sample_nbytes: NDArray[np.int64]) -> int:
    """The size of a page: that of all samples where they have one size, else a part of the mean."""
    most = int(sample_nbytes.max())
    if most == int(sample_nbytes.min()):
        return most
    part = int(sample_nbytes.mean()) // _PAGES_A_SAMPLE
    return max(_SMALLEST_PAGE, part // _SMALLEST_PAGE * _SMALLEST_PAGE)


class SampleArena:
    """The memory as one process sees it. Goes to workers as a descriptor, whether they are forked or spawned."""

    def __init__(self, shape: ArenaShape, descriptor: int | None = None) -> None:
        """Reserves the memory; or, with a `descriptor`, which it takes over, maps what another process has reserved.

        Raises UsageError where so much memory cannot be reserved.
        """
        self.shape = shape
        self.descriptor = _reserved(shape.nbytes) if descriptor is None else descriptor
        memory = mmap.mmap(self.descriptor, shape.nbytes)
        ends = np.cumsum((0, *shape.parts)).tolist()
        self.counters: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, _COUNTERS, ends[0])
        self.entries: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, shape.n_samples, ends[1])
        self.taken: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, shape.n_samples, ends[2])
        self.following: NDArray[np.uint32] = np.frombuffer(memory, np.uint32, shape.n_pages, ends[3])
        pages = np.frombuffer(memory, np.uint8, shape.n_pages * shape.page_bytes, ends[4])
        self.pages: NDArray[np.uint8] = pages.reshape(shape.n_pages, shape.page_bytes)
        weakref.finalize(self, os.close, self.descriptor)  # the mapping goes with its last view

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            raise UsageError("the memory of a loader cannot be pickled", "let the loader start its workers by itself")
        return _received, (self.shape, reduction.DupFd(self.descriptor))

    def copy(self, sample: int, nbytes: int) -> bytearray | None:
        """The bytes of a sample of `nbytes`; None where it is not there, or was replaced while it was copied."""
        entry = int(self.entries[sample])
        if not entry:
            return None
        page, page_bytes = (entry & _LOW) - 1, self.shape.page_bytes
        if nbytes <= page_bytes:
            found = bytearray(self.pages[page, :nbytes].data)
        else:
            chain = self._chain(page, -(-nbytes // page_bytes))
            if chain is None:
                return None
            found = bytearray(self.pages[chain].reshape(-1)[:nbytes].data)
        return found if int(self.entries[sample]) == entry else None

    def _chain(self, page: int, count: int) -> list[int] | None:
        """The `count` pages that follow one another from `page` on; None where they were given to another sample."""
        following, n_pages = self.following, self.shape.n_pages
        chain = [page]
        for _ in range(count - 1):
            page = int(following[page])
            if page >= n_pages:
                return None
            chain.append(page)
        return chain

    def put(self, data: NDArray[np.uint8], pages: NDArray[np.int32], read: int) -> int:
        """The `data` of a sample into `pages`, which are the caller's. Returns its entry, to `publish` and `remove`."""
        page_bytes = self.shape.page_bytes
        if len(pages) > 1:
            self.following[pages[:-1]] = pages[1:]
        whole = len(data) // page_bytes
        if whole:
            self.pages[pages[:whole]] = data[: whole * page_bytes].reshape(whole, page_bytes)
        rest = len(data) - whole * page_bytes
        if rest:
            self.pages[pages[whole], :rest] = data[whole * page_bytes :]
        return (read & _LOW) << 32 | (int(pages[0]) + 1)

    def publish(self, sample: int, entry: int) -> None:
        """The sample is there for everybody, unless a later read brought it already: that one stays longer."""
        if int(self.entries[sample]) < entry:
            self.entries[sample] = entry

    def remove(self, sample: int, entry: int) -> None:
        """The sample is not there any more, unless a later read brought it again. Not beside `publish`."""
        if int(self.entries[sample]) == entry:
            self.entries[sample] = 0

    def clear(self) -> None:
        """No sample is there."""
        self.entries[:] = 0


def _reserved(nbytes: int) -> int:
    """A new memfd of `nbytes`, all of them reserved."""
    try:
        descriptor = os.memfd_create("sentinel-samples", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise CapabilityError(
            "memory for samples", f"memfd_create: {error.strerror}", "allow it to this job"
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(
            f"{format_bytes(nbytes)} of memory for samples cannot be reserved ({error.strerror})", "give less memory="
        ) from error
    return descriptor


def _received(shape: ArenaShape, descriptor: Any) -> SampleArena:
    return SampleArena(shape, descriptor.detach())
