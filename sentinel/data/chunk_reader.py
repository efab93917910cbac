"""The reader of a job: carries a staging out, chunk by chunk, into the arena that the job's workers copy from.

One thread decides: it gives pages to the samples of the next read, as soon as there are enough, and takes pages back
whose last position was copied. Reads begin in the order of the plan, so those that are placed early can't take the room
of one that is needed before them: whatever the workers do, the next read finds room once all positions before it were
copied. Other threads read, several chunks at once, and put samples where they belong.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.data.sample_arena import PEAK_PAGES, PULSE, READ_BYTES, READS, RUNNING, SampleArena
from sentinel.data.source_files import SourceFiles
from sentinel.samples import ArenaPages, Staging

IN_FLIGHT = 4
"""Reads at once."""
_IDLE_S = 0.0005
"""Between two looks at what was copied, while there is no room for the next read."""
_LOOKED_AT = 1 << 16
"""Positions from the first one that was not copied; workers are never further ahead."""


class _Read(NamedTuple):
    number: int
    chunk: int
    stays: NDArray[np.int64]
    pages: list[NDArray[np.int32]]


class ChunkReader:
    """Carries stagings out, one after the other. All calls are for one thread, and not for a forked child."""

    def __init__(self, arena: SampleArena, files: SourceFiles, *, in_flight: int = IN_FLIGHT) -> None:
        self._state = _Reading(arena, files)
        self._in_flight = in_flight
        self._threads: list[threading.Thread] = []
        self._ended = weakref.finalize(self, self._state.stopping.set)  # threads end with the job's last use of it

    def begin(self, staging: Staging, *, goes_on: bool) -> None:
        """`staging` is what is carried out from now on. `goes_on`: it was planned from the one before, all positions of
        which were copied; what that one kept is in the arena. `start` begins reading."""
        self.pause()
        self._state.begin(staging, goes_on)

    def start(self) -> None:
        """Reads in threads of this process, from where it was paused."""
        state = self._state
        state.stopping.clear()
        queue: SimpleQueue[_Read | None] = SimpleQueue()
        slots = threading.Semaphore(self._in_flight)
        threads = [threading.Thread(target=state.decide, args=(queue, slots, self._in_flight), daemon=True)]
        threads += [
            threading.Thread(target=state.read, args=(queue, slots), daemon=True) for _ in range(self._in_flight)
        ]
        self._threads = threads
        for thread in threads:
            thread.name = "sentinel reader"
            thread.start()

    def pause(self) -> None:
        """No thread of it runs any more, and reads that had begun are done. To fork, and to end."""
        self._state.stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def finish(self) -> None:
        """Waits until all is read that the staging has. All of its positions were copied, or it failed."""
        for thread in self._threads:
            thread.join()
        self._threads = []

    @property
    def error(self) -> BaseException | None:
        """Why it reads no more, if it does not; samples are then read by who needs them."""
        return self._state.error


class _Reading:
    """What the threads share. Only `decide` allots and frees pages; it runs in one thread at a time."""

    def __init__(self, arena: SampleArena, files: SourceFiles) -> None:
        self.arena, self.files = arena, files
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.staging: Staging | None = None
        self.entries: dict[int, int] = {}
        """Stay -> its entry, of what is in the arena."""
        self.reads_before = 0
        """Of earlier stagings: a read's number, counted from the first one on, is in no other entry."""
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.free = ArenaPages(self.arena.shape.n_pages)
        self.pages: dict[int, NDArray[np.int32]] = {}
        """Stay -> its pages, of what has some."""
        self.entries.clear()
        self.arena.clear()

    def begin(self, staging: Staging, goes_on: bool) -> None:
        before = self.staging
        if goes_on and before is not None and self.error is None:
            stays = {int(old): new for new, old in enumerate(before.kept) if staging.stay_until[new] >= 0}
            for stay in [stay for stay in self.pages if stay not in stays]:
                self.release(before, stay)
            self.pages = {stays[stay]: pages for stay, pages in self.pages.items()}
            self.entries = {stays[stay]: entry for stay, entry in self.entries.items()}
        else:
            self._clear()
        self.arena.taken[:] = 0
        self.reads_before += 0 if before is None else len(before.read_chunk)
        self.staging, self.error = staging, None
        self.next_read, self.low = 0, 0
        self.seen = np.zeros(staging.n_positions, np.bool_)
        self.used_up: list[int] = []
        self.arena.counters[RUNNING] = 1  # from now on it is waited for

    def decide(self, queue: SimpleQueue[_Read | None], slots: threading.Semaphore, threads: int) -> None:
        staging = self.staging
        try:
            while staging is not None and self.next_read < len(staging.read_chunk) and self.error is None:
                read = self._placed(staging, self.next_read)
                if read is None:
                    self.look(staging)
                    read = self._placed(staging, self.next_read)
                if read is None:
                    if self.stopping.wait(_IDLE_S):
                        break
                    continue
                while not slots.acquire(timeout=0.1) and self.error is None:
                    pass
                self.next_read += 1
                queue.put(read)
                if self.stopping.is_set():
                    break
        except BaseException as error:
            self.fail(error)
        finally:
            for _ in range(threads):
                queue.put(None)

    def _placed(self, staging: Staging, number: int) -> _Read | None:
        """The read with pages for its samples; None if there are too few. Samples that nobody needs any more, for they
        were read by who needed them, get none."""
        first, stop = int(staging.first_stay[number]), int(staging.first_stay[number + 1])
        stays = np.arange(first, stop)
        until = staging.stay_until[first:stop]
        stays = stays[(until >= staging.n_positions) | ~self.seen[np.minimum(until, staging.n_positions - 1)]]
        nbytes = self.files.layout.sample_nbytes[staging.stay_sample[stays]]
        counts = -(-nbytes // self.arena.shape.page_bytes)
        needed = int(counts.sum())
        if needed > self.free.free:
            return None
        taken = np.split(self.free.take(needed), np.cumsum(counts)[:-1]) if needed else []
        self.pages.update(zip(stays.tolist(), taken, strict=True))
        counters, used = self.arena.counters, self.arena.shape.n_pages - self.free.free
        counters[PEAK_PAGES] = max(int(counters[PEAK_PAGES]), used)
        return _Read(number, int(staging.read_chunk[number]), stays, taken)

    def read(self, queue: SimpleQueue[_Read | None], slots: threading.Semaphore) -> None:
        while (read := queue.get()) is not None:
            try:
                if self.error is None:
                    self._carry_out(read)
            except BaseException as error:
                self.fail(error)
            finally:
                slots.release()

    def _carry_out(self, read: _Read) -> None:
        staging, layout = self.staging, self.files.layout
        assert staging is not None
        bytes_of = self.files.chunk(read.chunk)
        with self._lock:
            counters = self.arena.counters
            counters[READS] += np.uint64(1)
            counters[READ_BYTES] += np.uint64(layout.chunk_nbytes[read.chunk])
            counters[PULSE] += np.uint64(1)
        number = self.reads_before + read.number + 1
        for stay, pages in zip(read.stays.tolist(), read.pages, strict=True):
            sample = int(staging.stay_sample[stay])
            entry = self.arena.put(bytes_of(sample), pages, number)
            with self._lock:
                self.arena.publish(sample, entry)
            self.entries[stay] = entry

    def look(self, staging: Staging) -> None:
        """Frees what was copied for its last position."""
        stop = min(self.low + _LOOKED_AT, staging.n_positions)
        seen = self.seen[self.low : stop]
        new = np.flatnonzero(self.arena.taken[self.low : stop].view(np.bool_) & ~seen)
        if len(new):
            seen[new] = True
            positions = new + self.low
            stays = staging.stay_at[positions]
            last = stays[(stays >= 0) & (staging.stay_until[np.maximum(stays, 0)] == positions)]
            self.used_up += last.tolist()
            unseen = np.flatnonzero(~seen)
            self.low = self.low + int(unseen[0]) if len(unseen) else stop
            self.arena.counters[PULSE] += np.uint64(1)
        waiting = []
        for stay in self.used_up:
            if stay in self.entries:
                self.release(staging, stay)
            elif stay in self.pages:
                waiting.append(stay)  # its read goes on
        self.used_up = waiting

    def release(self, staging: Staging, stay: int) -> None:
        """The pages of a stay are free."""
        with self._lock:
            self.arena.remove(int(staging.stay_sample[stay]), self.entries.pop(stay))
        self.free.give_back(self.pages.pop(stay))

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.arena.counters[RUNNING] = 0  # nobody waits for it any more
