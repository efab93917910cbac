"""The reader of a job: carries a staging out, chunk by chunk, into the arena that the job's workers copy from.

One thread decides: it gives pages to the samples of the next read, as soon as there are enough, and takes pages back
once all positions of their sample were copied. Reads begin in the order of the plan, so those that are placed early
can't take the room of one that is needed before them: whatever the workers do, the next read finds room once all
positions before it were copied. Other threads read, several chunks at once, and put samples where they belong. A read
that fails is tried again; if it still fails, its samples are marked as lost, and the reader goes on with the next one.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.data.read_log import ReadCounts, ReadLog
from sentinel.data.reading_thread import ReadingThread
from sentinel.data.retries import tried
from sentinel.data.sample_arena import DONE, EPOCH, JOINED, OTHERS, PULSE, RUNNING, SampleArena, chains
from sentinel.data.source_files import ChunkRead, SourceFiles
from sentinel.samples import ArenaPages, Staging

IN_FLIGHT = 4
"""Reads at once, where workers are no more."""
MOST_IN_FLIGHT = 16
_LONGEST_WAIT_S = 0.1
"""For something to be copied, before the reader looks whether it is to end."""
_LOOKED_AT = 1 << 16
"""Positions from the first one that was not copied; workers are never further ahead."""
APART_S = 5.0
"""How long jobs that share an arena wait for one another in an epoch, all waits added up, until they part."""
_WAIT_FOR_OTHERS_S = 2e-3
"""In place of the longest wait: the bell tells of copies of this job only."""
_FAILED_IN_A_ROW = 3
"""After 3 reads in a row that failed, each further one is tried once."""
LONGEST_READ_S = 60.0
"""How long a read may take before it counts as one that never ends."""


def reads_in_flight(workers: int) -> int:
    """How many chunks are read at once for so many workers."""
    return min(max(IN_FLIGHT, workers), MOST_IN_FLIGHT)


class _Read(NamedTuple):
    number: int
    chunk: int
    stays: NDArray[np.int64]
    pages: NDArray[np.int32]


class ChunkReader:
    """Carries stagings out, one after the other. All calls are for one thread, and not for a forked child."""

    def __init__(
        self,
        arena: SampleArena,
        files: SourceFiles,
        *,
        in_flight: int = IN_FLIGHT,
        alive: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`alive`: whether another job that shares the arena, by its slot, has not ended."""
        self._state = _Reading(arena, files, alive)
        self._in_flight = in_flight
        self._threads: list[ReadingThread] = []
        self._end_with_me()

    def _end_with_me(self) -> None:
        self._ended = weakref.finalize(self, self._state.stopping.set)  # threads end with the job's last use of it

    def begin(self, staging: Staging, *, goes_on: bool, mark: int = 0, copied: int = 0) -> None:
        """`staging` is what is carried out from now on. `goes_on`: it was planned from the one before, all positions of
        which were copied; what that one kept is in the arena. `start` begins reading.

        `mark`: 1 + the epoch, where other jobs may join. `copied`: positions that are not looked for any more."""
        self.pause()
        self._state.wait_for_others()
        self._state.begin(staging, goes_on, mark, copied)

    def leave(self) -> None:
        """This job needs what it has read no more; others have copied it, or were waited for long enough."""
        self.pause()
        self._state.wait_for_others()

    def start(self) -> None:
        """Reads in threads of this process, from where it was paused. Where one cannot be started, raises RuntimeError,
        with none left, and nothing is read until `begin`."""
        state = self._state
        state.stopping.clear()
        queue: SimpleQueue[_Read | None] = SimpleQueue()
        slots = threading.Semaphore(self._in_flight)
        n, name = self._in_flight, "sentinel reader"
        self._threads = [ReadingThread(name, state.stopping, state.read, queue, slots) for _ in range(n)]
        self._threads.append(ReadingThread(name, state.stopping, state.decide, queue, slots, n))
        try:
            for thread in self._threads:  # who decides comes last: no read begins before all threads run
                thread.start()
        except BaseException as error:
            state.fail(error)
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            for _ in range(n):
                queue.put(None)
            self.pause()
            raise

    def pause(self) -> None:
        """No thread of it runs any more, and reads that had begun are done, or never end. To fork, and to end."""
        self._state.stopping.set()
        self._state.arena.wake()
        self.finish()

    def finish(self) -> None:
        """Waits until all is read that the staging has. All of its positions were copied, or it failed. Reads that take
        longer than LONGEST_READ_S are left to themselves once there is no other."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LONGEST_WAIT_S)
                if thread.is_alive() and self._state.abandon():
                    self._start_anew()
                    return
        self._threads = []

    def _start_anew(self) -> None:
        """What the threads share is theirs alone: whenever their reads end, they change nothing here any more."""
        self._ended.detach()
        self._state = self._state.successor()
        self._threads = []
        self._end_with_me()

    @property
    def error(self) -> BaseException | None:
        """Why it reads no more, if it does not; samples are then read by who needs them."""
        return self._state.error

    @property
    def kept_all(self) -> bool:
        """Whether all that stays beyond the epoch could be read."""
        return self.error is None and not self._state.lost_kept

    @property
    def last_failure(self) -> BaseException | None:
        """Of the last read that failed, if one did."""
        return self._state.failure

    @property
    def counts(self) -> ReadCounts:
        """What was done since it was made."""
        return self._state.log.counts

    @property
    def peak_pages(self) -> int:
        """Most pages of the arena that were in use."""
        return self._state.peak_pages

    @property
    def last_reads(self) -> NDArray[np.void]:
        """(rows,) of READ, the last ones that ended."""
        return self._state.log.last


class _Reading:
    """What the threads share. Only `decide` allots and frees pages; it runs in one thread at a time."""

    def __init__(self, arena: SampleArena, files: SourceFiles, alive: Callable[[int], bool]) -> None:
        self.arena, self.files, self.alive = arena, files, alive
        self.waited_s = 0.0
        """By jobs that share the arena for one another, in this epoch."""
        self.under_way: dict[int, float] = {}
        """Reads that were begun and are not done, and when they were; those that are being written never take too
        long."""
        self.abandoned = False
        """Whether another one has the arena now."""
        self.stopping = threading.Event()
        self.log = ReadLog()
        self.error: BaseException | None = None
        self.failure: BaseException | None = None
        self.lost_kept = False
        """Whether a read failed of which the epochs that follow were to have samples."""
        self.staging: Staging | None = None
        self.peak_pages = self.failed_in_a_row = 0
        self.reads_before = 0
        """Of earlier stagings: a read's number, counted from the first one on, is in no other entry."""
        self._lock = threading.Lock()
        self.following = np.zeros(arena.shape.n_pages, np.int32)
        """The arena's column, where no other process can write to it."""
        self._clear(0)

    def abandon(self) -> bool:
        """Whether each read that is under way takes too long. Then this one fails, and writes nothing any more."""
        begun_after = time.monotonic() - LONGEST_READ_S
        with self._lock:
            if not self.under_way or any(began > begun_after for began in self.under_way.values()):
                return False
            self.abandoned = True
        self.stopping.set()
        self.fail(TimeoutError(f"a read takes longer than {LONGEST_READ_S:.0f} s"))
        return True

    def successor(self) -> _Reading:
        """One that has failed as this one did, and has its counts."""
        made = _Reading(self.arena, self.files, self.alive)
        made.log, made.error, made.failure, made.peak_pages = self.log, self.error, self.failure, self.peak_pages
        made.reads_before = self.reads_before + (0 if self.staging is None else len(self.staging.read_chunk))
        return made

    def _clear(self, n_stays: int) -> None:
        self.free = ArenaPages(self.arena.shape.n_pages)
        self.first_page = np.full(n_stays, -1, np.int64)
        """(n_stays,) Of what has pages, else -1."""
        self.entries = np.zeros(n_stays, np.uint64)
        """(n_stays,) Of what is in the arena, else 0."""
        self.arena.clear()

    def begin(self, staging: Staging, goes_on: bool, mark: int, copied: int) -> None:
        told = self.arena.counters
        stay = self.joined() if mark and mark == int(told[EPOCH]) + 1 else []
        told[EPOCH] = 0
        before, n_stays = self.staging, len(staging.stay_read)
        if goes_on and before is not None and self.error is None:
            kept = before.kept
            used = staging.stay_until[: len(kept)] >= 0  # the new staging begins with what was kept
            leaving = self.first_page >= 0
            leaving[kept[used]] = False
            self.release(before, np.flatnonzero(leaving))
            pages, entries = self.first_page[kept], self.entries[kept]
            self.first_page, self.entries = np.full(n_stays, -1, np.int64), np.zeros(n_stays, np.uint64)
            self.first_page[: len(kept)], self.entries[: len(kept)] = pages, entries
        else:
            self._clear(n_stays)
        self.arena.taken_by[:] = 0
        self.arena.taken[:copied] = 1
        self.reads_before += 0 if before is None else len(before.read_chunk)
        self.staging, self.error, self.failed_in_a_row, self.lost_kept = staging, None, 0, False
        self.next_read, self.low = 0, 0
        self.seen = np.zeros(staging.n_positions, np.bool_)
        self.uses_left = np.bincount(staging.stay_at[staging.stay_at >= 0], minlength=n_stays)
        """(n_stays,) Positions that each serves and that were not seen to be copied."""
        self.used_up = np.zeros(0, np.int64)
        self.waited_s = 0.0
        self.under_way.clear()
        self.say_done()
        told[JOINED:OTHERS] = 0
        for slot in (*stay, self.arena.slot):
            told[JOINED + slot] = mark
        told[EPOCH] = mark
        told[RUNNING] = 1  # from now on it is waited for

    # --- jobs that share the arena ---

    def joined(self) -> list[int]:
        """The slots of the jobs whose copies are waited for; this job's is one of them."""
        told, own = self.arena.counters, self.arena.slot
        mark = int(told[EPOCH])
        if not mark or self.arena.shape.jobs == 1:
            return [own]
        found: list[int] = np.flatnonzero(told[JOINED : JOINED + self.arena.shape.jobs] == mark).tolist()
        return found

    def copied(self, begin: int, stop: int) -> NDArray[np.bool_]:
        """(stop - begin,) whether all of them have copied these positions."""
        return np.asarray(self.arena.taken_by[self.joined(), begin:stop].all(axis=0))

    def part(self, due: int, seconds: float) -> None:
        """What is due at position `due` had to wait for so long. If one job has come there, and another one has not
        copied what lies before, they part once they have waited for APART_S: the one that is not the reader's reads by
        itself."""
        joined, own = self.joined(), self.arena.slot
        if len(joined) < 2:
            return
        at = {slot: self.low + _first_zero(self.arena.taken_by[slot, self.low : due]) for slot in joined}
        behind, there = ([slot for slot in joined if (at[slot] >= due) is come] for come in (False, True))
        if not behind or not there:
            return
        self.waited_s += seconds
        parting = [slot for slot in behind if slot != own and not self.alive(slot)]
        if self.waited_s > APART_S:
            parting = [slot for slot in (there if own in behind else behind) if slot != own]
            self.waited_s = 0.0
        for slot in parting:
            self.arena.counters[JOINED + slot] = 0

    def wait_for_others(self) -> None:
        """Until all jobs have copied all that the last staging has, or have parted."""
        m = 0 if self.staging is None else self.staging.n_positions
        began = time.monotonic()
        while len(self.joined()) > 1 and not self.copied(0, m).all():
            self.arena.taken[:] = 1
            time.sleep(_WAIT_FOR_OTHERS_S)
            now = time.monotonic()  # of many samples it takes longer to look than to sleep
            self.part(m, now - began)
            began = now

    def say_done(self) -> None:
        """Where jobs share: all reads are done that are due before a position. With the lock, where threads run."""
        staging = self.staging
        if staging is not None and self.arena.shape.jobs > 1:
            first = min(self.under_way, default=self.next_read)
            due = staging.read_due
            self.arena.counters[DONE] = due[first] if first < len(due) else staging.n_positions

    def decide(self, queue: SimpleQueue[_Read | None], slots: threading.Semaphore, threads: int) -> None:
        staging = self.staging
        try:
            while staging is not None and self.next_read < len(staging.read_chunk) and self.error is None:
                read = self._placed(staging, self.next_read)
                if read is None:
                    self.look(staging)
                    read = self._placed(staging, self.next_read)
                if read is None:
                    if self.stopping.is_set():
                        break
                    began = time.monotonic()
                    self.arena.wait(_LONGEST_WAIT_S if len(self.joined()) == 1 else _WAIT_FOR_OTHERS_S)
                    self.beat()
                    self.part(int(staging.read_due[self.next_read]), time.monotonic() - began)
                    continue
                if not self._slot(slots):
                    self.first_page[read.stays] = -1
                    self.free.give_back(read.pages)
                    break
                with self._lock:
                    self.under_way[read.number] = time.monotonic()
                    self.next_read += 1
                queue.put(read)
                if self.stopping.is_set():
                    break
        except BaseException as error:
            self.fail(error)
        for _ in range(threads):
            queue.put(None)
        for _ in range(threads):  # all slots are free once the last read is done
            while self.error is None and not slots.acquire(timeout=_LONGEST_WAIT_S):
                self.beat()

    def _slot(self, slots: threading.Semaphore) -> bool:
        """Waits until one more chunk may be read. False if none is to be read any more."""
        while not slots.acquire(timeout=_LONGEST_WAIT_S):
            if self.stopping.is_set() or self.error is not None:
                return False
            self.beat()
        return True

    def beat(self) -> None:
        """Who waits for a sample sees that a read goes on, unless it takes too long."""
        begun_after = time.monotonic() - LONGEST_READ_S
        with self._lock:
            if any(began > begun_after for began in self.under_way.values()):
                self.arena.counters[PULSE] += np.uint64(1)

    def _placed(self, staging: Staging, number: int) -> _Read | None:
        """The read with pages for its samples; None if there are too few. Samples that nobody needs any more, for they
        were read by who needed them, get none."""
        first, stop = int(staging.first_stay[number]), int(staging.first_stay[number + 1])
        stays = np.arange(first, stop)
        until = staging.stay_until[first:stop]
        stays = stays[(until >= staging.n_positions) | (self.uses_left[first:stop] > 0)]
        counts = self._counts(staging, stays)
        needed = int(counts.sum())
        if needed > self.free.free:
            return None
        pages = self.free.take(needed)
        self.following[pages[:-1]] = pages[1:]
        self.first_page[stays] = np.append(pages, 0)[np.cumsum(counts) - counts]
        self.peak_pages = max(self.peak_pages, self.arena.shape.n_pages - self.free.free)
        return _Read(number, int(staging.read_chunk[number]), stays, pages)

    def _counts(self, staging: Staging, stays: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k,) pages that stays take."""
        nbytes = self.files.layout.sample_nbytes[staging.stay_sample[stays]]
        return np.asarray(-(-nbytes // self.arena.shape.page_bytes), np.int64)

    def read(self, queue: SimpleQueue[_Read | None], slots: threading.Semaphore) -> None:
        while (read := queue.get()) is not None:
            try:
                if self.error is None:
                    self._carry_out(read)
            except BaseException as error:
                self.fail(error)
            finally:
                with self._lock:
                    self.under_way.pop(read.number, None)
                    if not self.abandoned:
                        self.say_done()
                slots.release()

    def _carry_out(self, read: _Read) -> None:
        staging, layout, arena = self.staging, self.files.layout, self.arena
        assert staging is not None
        if not len(read.stays):
            return  # who needed its samples has read them
        number, samples = self.reads_before + read.number + 1, staging.stay_sample[read.stays]
        found = self._read(read.chunk, samples)
        with self._lock:
            if self.abandoned:
                return
            self.under_way[read.number] = inf
        if found is None:
            entries = arena.lost(samples, number)
            if (staging.stay_until[read.stays] >= staging.n_positions).any():
                self.lost_kept = True
        else:
            entries = arena.put(found.data, found.begins, layout.sample_nbytes[samples], samples, read.pages, number)
        with self._lock:
            arena.counters[PULSE] += np.uint64(1)
            arena.publish(samples, entries)
            self.entries[read.stays] = entries

    def _read(self, chunk: int, samples: NDArray[np.int64]) -> ChunkRead | None:
        """What SourceFiles.chunk gives; None if the chunk cannot be read."""
        try:
            with self.log.reading(chunk) as got:
                if self.failed_in_a_row < _FAILED_IN_A_ROW:
                    found = tried(lambda: self.files.chunk(chunk, samples), self.stopping.wait)
                else:
                    found = self.files.chunk(chunk, samples)
                got.told(found.ranges, found.nbytes)
        except Exception as error:  # a source of any kind: its errors are not known here
            with self._lock:
                self.failure, self.failed_in_a_row = error, self.failed_in_a_row + 1
            return None
        with self._lock:
            self.failed_in_a_row = 0
        return found

    def look(self, staging: Staging) -> None:
        """Frees what was copied for each of its positions."""
        stop = min(self.low + _LOOKED_AT, staging.n_positions)
        seen = self.seen[self.low : stop]
        new = np.flatnonzero(self.copied(self.low, stop) & ~seen)
        if len(new):
            seen[new] = True
            stays = staging.stay_at[new + self.low]
            stays = stays[stays >= 0]
            np.subtract.at(self.uses_left, stays, 1)  # two positions may have one stay, and be copied in any order
            stays = np.unique(stays)
            done = (self.uses_left[stays] == 0) & (staging.stay_until[stays] < staging.n_positions)
            self.used_up = np.concatenate([self.used_up, stays[done]])
            unseen = np.flatnonzero(~seen)
            self.low = self.low + int(unseen[0]) if len(unseen) else stop
            self.arena.counters[PULSE] += np.uint64(1)
        used = self.used_up
        there = self.entries[used] != 0
        self.used_up = used[~there & (self.first_page[used] >= 0)]  # their reads go on
        self.release(staging, used[there])

    def release(self, staging: Staging, stays: NDArray[np.int64]) -> None:
        """The pages of `stays`, which are in the arena, are free."""
        with self._lock:
            self.arena.remove(staging.stay_sample[stays], self.entries[stays])
        pages = chains(self.following, self.first_page[stays], self._counts(staging, stays))
        self.free.give_back(pages.astype(np.int32))
        self.first_page[stays], self.entries[stays] = -1, 0

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.arena.counters[RUNNING] = 0  # nobody waits for it any more


def _first_zero(column: NDArray[np.uint8]) -> int:
    """Where the first 0 is; the length if there is none."""
    zeros = np.flatnonzero(column == 0)
    return int(zeros[0]) if len(zeros) else len(column)
