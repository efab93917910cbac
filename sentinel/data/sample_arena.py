"""The memory that staged samples lie in: one memfd a job, which its reader fills and its workers copy from.

All of it is reserved before the first read, so that no access can fail for want of memory, and sealed, so that nobody
can shorten it. It has no name in any file system: it goes with the last process that has it open, however that ends.
It may be on a NUMA node, or be a file on a disk, which cannot be sealed.

    counters   whether the reader goes on
    entries    a mailbox a sample: 0, or where its bytes are: the number of the read that brought them in the upper 32
               bits, its first page + 1 in the lower ones, 0 there if the read failed
    sums       a sample: a checksum of its number and its bytes
    taken      a position of the epoch: 1 once its sample was copied; one column for each of the jobs that share
    worth      a sample, where jobs that select share: what it is worth to this job, and whether it holds it
    following  a page: the next one of the same sample
    pages      the bytes. A sample has as many pages as it needs, anywhere, so that no room is lost between samples

Only the reader writes entries, sums and pages. Who copies checks the entry before and after: if it is the same, so were
the bytes, for no two reads have one number. Another process of the same user can open the memory and write to it, so
who copies compares the checksum too. The reader keeps what it needs for itself in its own memory.

A bell (an eventfd) beside it wakes the reader when samples were copied. Of the arena of another job there is none.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import select
import weakref
from dataclasses import dataclass
from enum import Enum
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.interrupts import let_through
from sentinel.core.ragged import positions
from sentinel.core.units import PAGE_BYTES, format_bytes, page_ceil
from sentinel.data.arena_memory import is_sealed, mapped, new_bell, new_memory, prefer, require_on, reserve
from sentinel.data.sources.source import check_few
from sentinel.runtime.process import RUNTIME
from sentinel.system.limits import available_bytes
from sentinel.tiers.arena_place import ANYWHERE, ArenaPlace

MOST_JOBS = 8
"""That share an arena."""
MOST_PAGES = (1 << 31) - 1
"""Of an arena: their numbers are int32."""
PULSE, RUNNING, EPOCH, DONE, WANTED, HOST_PID, HOST_FD, HOST_INODE, BEGAN_NS, EPOCH_NS, JOINED = range(11)
"""Counters: what rises while the reader works, and whether it does. Where jobs share: 1 + the epoch that is read, 0 if
none that others may join; the first position whose reads may not be done. For the workers of this job: 1 + the epoch
that they are asked for, and process, descriptor and inode of the arena that another job fills for them; process 0 if
there is none. Where jobs that select share: when the epoch began, by CLOCK_MONOTONIC, and how long one takes, 0 if that
is not known.
From JOINED on, a job: 1 + the epoch in which its copies are waited for. From OTHERS on, a job: process, descriptor and
inode of its arena, in which workers of this job look too; process 0 if there is none."""
OTHERS = JOINED + MOST_JOBS

_COUNTERS = OTHERS + 3 * MOST_JOBS
_LOW = (1 << 32) - 1
_PAGES_A_SAMPLE = 32
"""In the mean, of large samples. The last page of a sample is half empty in the mean, so a 64th of the room is lost."""
_SMALLEST_PAGE = 64
_WORD_BYTES = 8
_ODD = np.uint64(0x9E3779B97F4A7C15)
_DOWN = np.uint64(33)
"""Multiplying by it carries each bit of a sum into the upper half."""


@dataclass(frozen=True)
class ArenaShape:
    """What an arena has room for: entries for `n_samples`, and `n_pages` of `page_bytes`, for `jobs` that share it.
    `worth`: others see what samples are worth to its job."""

    n_samples: int
    n_pages: int
    page_bytes: int
    jobs: int = 1
    worth: bool = False

    @property
    def parts(self) -> tuple[int, ...]:
        """Bytes of counters, entries, sums, taken, worth, following and pages, each a multiple of the kernel's
        pages."""
        n, pages = self.n_samples, self.n_pages
        of_samples = 8 * n, 4 * n, n * self.jobs, n * self.worth
        return tuple(map(page_ceil, (8 * _COUNTERS, *of_samples, 4 * pages, pages * self.page_bytes)))

    @property
    def nbytes(self) -> int:
        """Of the whole arena."""
        return sum(self.parts)


def shape_within(
    memory_bytes: int, sample_nbytes: NDArray[np.int64], jobs: int = 1, *, worth: bool = False
) -> ArenaShape:
    """The largest useful arena of at most `memory_bytes` for samples of these sizes, for so many jobs, with or without
    what samples are `worth`; 0 pages if there is room for none.

    Raises UsageError for more samples than MOST_SAMPLES.
    """
    check_few(len(sample_nbytes))
    page = page_bytes_for(sample_nbytes)
    left = memory_bytes - ArenaShape(len(sample_nbytes), 0, page, jobs, worth).nbytes
    left -= 2 * PAGE_BYTES  # rounded up twice
    of_samples = -(-sample_nbytes // page)
    useful = int(of_samples.sum()) * 9 // 8 + int(of_samples.max())  # all samples, and some on their way
    return ArenaShape(len(sample_nbytes), min(max(left, 0) // (page + 4), useful, MOST_PAGES), page, jobs, worth)


def page_bytes_for(sample_nbytes: NDArray[np.int64]) -> int:
    """The size of a page, in whole words: that of all samples where they have one size, else a part of the mean."""
    most = int(sample_nbytes.max())
    if most == int(sample_nbytes.min()):
        return -(-most // _WORD_BYTES) * _WORD_BYTES
    mean = int(sample_nbytes.mean())
    part = max(mean // _PAGES_A_SAMPLE, math.isqrt(8 * mean))  # below that `following` takes more than is won
    return max(_SMALLEST_PAGE, (part + _SMALLEST_PAGE // 2) // _SMALLEST_PAGE * _SMALLEST_PAGE)


class Missing(Enum):
    """Why a sample was not copied: it is not there yet, will not come for its read failed, or has other bytes than
    those that the reader wrote."""

    ABSENT, LOST, DAMAGED = range(3)


class SampleArena:
    """The memory as one process sees it. Goes to workers as descriptors, whether they are forked or spawned."""

    def __init__(
        self,
        shape: ArenaShape,
        descriptors: tuple[int, int] | None = None,
        *,
        slot: int = 0,
        reserved: bool = True,
        place: ArenaPlace = ANYWHERE,
    ) -> None:
        """Reserves the memory at `place`, without `reserved` all but the pages; or, with `descriptors` (of the memory
        and of the bell, -1 for none), which it takes over, maps what another process has reserved. `slot`: which of the
        jobs this is.

        Raises UsageError where so much memory cannot be reserved there, CapabilityError where the kernel refuses to
        place it.
        """
        self.shape, self.slot, self.place, self.node = shape, slot, place, place.node
        ends = np.cumsum((0, *shape.parts)).tolist()
        self._of_pages = ends[-2], shape.parts[-1]
        is_new = descriptors is None
        if descriptors is None:
            memory_descriptor = new_memory(shape.nbytes, place.folder)
            descriptors = memory_descriptor, new_bell(memory_descriptor, shape.nbytes)
        self.descriptor, self._bell = descriptors
        for fd in descriptors:
            if fd >= 0:
                weakref.finalize(self, os.close, fd)  # the mapping goes with its last view
        self.inode = os.fstat(self.descriptor).st_ino
        """In no other arena of this machine: descriptors, and numbers of processes, are used again."""
        self._memory = memory = mapped(self.descriptor, shape.nbytes)
        if is_new:
            if self.node is not None:
                prefer(np.frombuffer(memory, np.uint8), self.node)  # before any page is there
            self._reserve(0, shape.nbytes if reserved else ends[-2])
            RUNTIME.beside.add(self)
        self.counters: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, _COUNTERS, ends[0])
        self.entries: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, shape.n_samples, ends[1])
        words = np.random.default_rng(0).integers(1 << 63, size=shape.page_bytes // 8, dtype=np.uint64)
        self._factors = words * np.uint64(2) + np.uint64(1)
        self.sums: NDArray[np.uint32] = np.frombuffer(memory, np.uint32, shape.n_samples, ends[2])
        taken = np.frombuffer(memory, np.uint8, shape.n_samples * shape.jobs, ends[3])
        self.taken_by: NDArray[np.uint8] = taken.reshape(shape.jobs, shape.n_samples)
        self.taken: NDArray[np.uint8] = self.taken_by[slot]
        self.worth: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, shape.n_samples * shape.worth, ends[4])
        self.following: NDArray[np.uint32] = np.frombuffer(memory, np.uint32, shape.n_pages, ends[5])
        pages = np.frombuffer(memory, np.uint8, shape.n_pages * shape.page_bytes, ends[6])
        self.pages: NDArray[np.uint8] = pages.reshape(shape.n_pages, shape.page_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            raise UsageError("the memory of a loader cannot be pickled", "let the loader start its workers by itself")
        return _received, (
            self.shape,
            self.slot,
            self.place,
            reduction.DupFd(self.descriptor),
            reduction.DupFd(self._bell),
        )

    def reserve(self) -> None:
        """The pages are reserved, if they were not. Raises UsageError where there is not so much memory: where a
        container limits it, the kernel would end a job that asks for more. Whatever is raised, what was reserved here
        goes back to the kernel."""
        missing, there = self.shape.nbytes - self.held_bytes, available_bytes()
        if missing > there:
            raise UsageError(
                f"{format_bytes(missing)} of memory for samples cannot be reserved, {format_bytes(there)} are left",
                "give less memory=",
            )
        try:
            self._reserve(*self._of_pages)
        except BaseException:
            if missing > 0:  # else they were there before, and may hold samples
                self.let_go()
            raise

    @property
    def held_bytes(self) -> int:
        """What is reserved of it."""
        return 512 * os.fstat(self.descriptor).st_blocks

    def _reserve(self, at: int, nbytes: int) -> None:
        reserve(self.descriptor, at, nbytes)
        if self.node is not None and nbytes:
            require_on(np.frombuffer(self._memory, np.uint8, nbytes, at), self.node)

    def let_go(self) -> None:
        """The pages go back to the kernel, but what somebody has locked in memory; what lay there is lost."""
        try:
            self._memory.madvise(mmap.MADV_REMOVE, *self._of_pages)
        except OSError as error:
            let_through(error)
            if error.errno != errno.EINVAL:
                raise

    def serves(self, wanted: int) -> bool:
        """Whether the reader goes on, and where jobs share, with what this one wants (1 + the epoch), at its pace."""
        told = self.counters
        if self.shape.jobs == 1:
            return bool(told[RUNNING])
        return bool(told[RUNNING]) and int(told[EPOCH]) == wanted == int(told[JOINED + self.slot])

    # --- who copies ---

    def copy(self, samples: NDArray[np.int64], nbytes: NDArray[np.int64]) -> list[memoryview | Missing]:
        """The bytes of `samples` (k,) of `nbytes` (k,), or why they could not be copied."""
        entries = self.entries[samples]
        first = (entries & np.uint64(_LOW)).astype(np.int64) - 1
        found: list[memoryview | Missing] = [Missing.LOST if entry else Missing.ABSENT for entry in entries.tolist()]
        there = np.flatnonzero((first >= 0) & (first < self.shape.n_pages))
        if not len(there):
            return found
        counts = -(-nbytes[there] // self.shape.page_bytes)
        copied = self.pages.take(chains(self.following, first[there], counts), axis=0)
        sums = self._sums(copied, counts, samples[there])
        same = self.entries[samples[there]] == entries[there]
        right = self.sums[samples[there]] == sums
        data, begins = copied.reshape(-1).data, (np.cumsum(counts) - counts) * self.shape.page_bytes
        ends = begins + nbytes[there]
        rows = zip(*(column.tolist() for column in (there, begins, ends, same, right)), strict=True)
        for number, begin, end, whole, sound in rows:
            found[number] = data[begin:end] if whole and sound else Missing.DAMAGED if whole else Missing.ABSENT
        return found

    def first_pages(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k,) the first page of each of `samples`, which are there; page 0 of those that are not."""
        first = (self.entries[samples] & np.uint64(_LOW)).astype(np.int64) - 1
        return first.clip(0, self.shape.n_pages - 1)

    def take(self, positions: NDArray[np.int64] | slice) -> None:
        """The samples of these positions are not needed in the arena any more: the reader is told."""
        self.taken[positions] = 1
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    # --- the reader ---

    def put(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        samples: NDArray[np.int64],
        pages: NDArray[np.int32],
        read: int,
    ) -> NDArray[np.uint64]:
        """`samples` (k,), which lie in `data` at `begins` (k,) with `nbytes` (k,), into `pages`, which are the
        caller's. Returns their entries, to `publish` and `remove`."""
        entries = self.lost(samples, read)
        if not len(samples):
            return entries
        copied, counts = self._paged(data, begins, nbytes)
        self.following[pages[:-1]] = pages[1:]
        self.pages[pages] = copied
        self.sums[samples] = self._sums(copied, counts, samples)
        entries += pages[np.cumsum(counts) - counts].astype(np.uint64) + np.uint64(1)
        return entries

    def sums_of(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], nbytes: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """(k,) checksums that `samples` have once they are put."""
        return self._sums(*self._paged(data, begins, nbytes), samples)

    def _paged(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(n, page_bytes) pages of samples that lie in `data`, zeros after the end of each, and (k,) pages of each."""
        page_bytes = self.shape.page_bytes
        counts = -(-nbytes // page_bytes)
        within = positions(counts)
        at = np.repeat(begins, counts) + within * page_bytes
        if len(data) < page_bytes:
            data = np.concatenate([data, np.zeros(page_bytes, np.uint8)])
        whole = len(data) - page_bytes
        copied = sliding_window_view(data, page_bytes)[np.minimum(at, whole)]
        for row in np.flatnonzero(at > whole).tolist():  # the last page of the last sample
            copied[row, : len(data) - at[row]] = data[at[row] :]
        of_last = nbytes - (counts - 1) * page_bytes
        part = of_last < page_bytes
        if part.any():
            last = (np.cumsum(counts) - 1)[part]
            copied[last] = np.where(np.arange(page_bytes) >= of_last[part, None], 0, copied[last])
        return copied, counts

    def lost(self, samples: NDArray[np.int64], read: int) -> NDArray[np.uint64]:
        """Entries of `samples` (k,) whose read failed."""
        return np.full(len(samples), (read & _LOW) << 32, np.uint64)

    def publish(self, samples: NDArray[np.int64], entries: NDArray[np.uint64]) -> None:
        """Each sample is there for everybody, unless a later read brought it already: that one stays longer."""
        newer = self.entries[samples] < entries
        self.entries[samples[newer]] = entries[newer]

    def remove(self, samples: NDArray[np.int64], entries: NDArray[np.uint64]) -> None:
        """Each sample is not there any more, unless a later read brought it again. Not beside `publish`."""
        self.entries[samples[self.entries[samples] == entries]] = 0

    def clear(self) -> None:
        """No sample is there."""
        self.entries[:] = 0

    def wait(self, seconds: float) -> None:
        """Waits until something is taken, so long at most. For the reader alone."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if poll.poll(seconds * 1e3):
            os.eventfd_read(self._bell)

    def wake(self) -> None:
        """Ends `wait`."""
        os.eventfd_write(self._bell, 1)

    def _sums(
        self, pages: NDArray[np.uint8], counts: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """(k,) checksums of samples that have `counts` (k,) of the (n, page_bytes) `pages`. One word that is another
        makes another sum of words, each times a factor of its own, so that two which are others do, too; pages that
        change places do, and the same bytes as another sample's. What differs in the high bits of a word is brought to
        low ones before: the product of a high bit depends on few bits of the factor, so that two could cancel out."""
        words = pages.view(np.uint64)
        mixed = words >> _DOWN
        mixed ^= words
        sums = mixed @ self._factors
        sums *= positions(counts).astype(np.uint64) * np.uint64(2) + np.uint64(1)
        of_sample = np.add.reduceat(sums, np.cumsum(counts) - counts) + samples.astype(np.uint64)
        return (of_sample * _ODD >> np.uint64(32)).astype(np.uint32)


def chains(following: NDArray[Any], first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `counts` (k,) pages that follow one another from each of `first` (k,) on, one sample after the other. What
    leads beyond the last page leads to that."""
    begins = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()), np.int64)
    page = first
    for step in range(int(counts.max(initial=0))):
        found[begins + step] = page
        more = counts > step + 1
        if not more.all():
            begins, counts, page = begins[more], counts[more], page[more]
        page = np.minimum(following[page], len(following) - 1).astype(np.int64)
    return found


def arena_of(pid: int, descriptor: int, inode: int, shape: ArenaShape, slot: int) -> SampleArena | None:
    """The arena that another process of the same user has under this descriptor; None if there is none with this inode
    and of this shape, or the process has ended."""
    try:
        found = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(found)
        fits = (status.st_ino, status.st_size) == (inode, shape.nbytes)
        fits = fits and is_sealed(found)
    except OSError:  # a file of another kind has no seals
        fits = False
    if not fits:
        os.close(found)
        return None
    return SampleArena(shape, (found, -1), slot=slot)


def _received(shape: ArenaShape, slot: int, place: ArenaPlace, *descriptors: Any) -> SampleArena:
    memory, bell = (descriptor.detach() for descriptor in descriptors)
    return SampleArena(shape, (memory, bell), slot=slot, place=place)
