"""What a rank does for the others: it reads its chunks once, and puts their samples into the server of its machine.

A rank has a hash there. A field of it is a sample that the plan of all ranks keeps; its value is a checksum of the
sample, then its bytes. Whoever needs a sample last deletes it. Two more fields: one says that the rank has begun, and
what it was given, the other that it puts there what it reads, but for reads that it names; this one is taken away where
the server is full. So nobody waits for what does not come, and whoever comes before the rank has begun does wait.

A job that has ended leaves such hashes behind, perhaps of other bytes under the same names. So each rank draws a token,
which others ask a rank to repeat beside what it was given: a hash that does not repeat it was written before this rank
began, and is none of this job's.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import closing
from threading import Event, Lock

import numpy as np
from numpy.typing import NDArray

from sentinel.data.chunk_reader import LONGEST_READ_S
from sentinel.data.peers import Line, RankHash
from sentinel.data.read_log import ReadLog
from sentinel.data.reading_thread import ReadingThread
from sentinel.data.resp_client import Refusal
from sentinel.data.retries import tried
from sentinel.data.sample_arena import SampleArena
from sentinel.data.source_files import SourceFiles
from sentinel.samples.world_plan import NAME, WorldPlan

OPEN, BEGUN = b"open", b"begun"
SUM_BYTES = 4
TOKEN_BYTES = 8
_NOTE_ENDS = b"\n"
"""Tokens follow the note."""
FULL_S = 2.0
"""For so long a server that was full is given nothing."""
_FORGOTTEN_S = b"3600"
"""After so long without a chunk or a batch the server deletes what a rank left there."""
_LEFT_S = b"60"
"""After so long, where the rank has said that it goes on with nothing: others may be at the end of its epoch."""
_RENEWED_S = 600.0
"""After so long the server is told again that the rank is there: one that has all it needs puts no chunks."""
_LONGEST_WAIT_S = 0.1
"""For samples to be copied, before it is looked whether the provider is to end."""
_PATIENT_S = 10.0
"""For answers at the begin of an epoch: others may wait for what this rank could not say there."""
_MOST_NOT_PUT = 4096
"""Reads that are named; older ones are waited for like any other."""
_MOST_OVER = 4
"""Epochs whose samples are to be deleted still, where the server was silent each time."""
_MOST_KNOWN = 4096
"""Tokens that a rank repeats, the last ones."""
_LOOKED_AGAIN_S = 0.25
"""After so long it is looked which ranks ask to be known."""
_OF_RANK = 2
"""Fields of a hash that are no samples."""
_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20
"""Samples and bytes in a command: the server holds it beside what it keeps."""


class Progress:
    """How far this rank is."""

    def __init__(self, board: SampleArena) -> None:
        self._taken = board.taken
        self.begin(0)

    def begin(self, n_positions: int) -> None:
        """An epoch of so many positions."""
        self._n_positions, self._low = n_positions, 0

    @property
    def delivered(self) -> int:
        """Positions whose samples workers have."""
        while self._low < self._n_positions:
            some = self._taken[self._low : min(self._low + (1 << 16), self._n_positions)]
            if not some.all():
                return self._low + int(np.count_nonzero(some))  # workers are never further ahead
            self._low += len(some)
        return self._low


class ChunkProvider:
    """Reads the chunks that fall to this rank, as the plan of all ranks has them, and puts their samples into the
    server of this machine. Calls are for one thread, and not for a forked child."""

    def __init__(
        self,
        files: SourceFiles,
        board: SampleArena,
        own: RankHash,
        rank: int,
        progress: Progress,
        stopping: Event,
    ) -> None:
        """`own`: the hash of this rank, whose number is `rank`."""
        self._files, self._board, self._own, self._progress, self._stopping = files, board, own, progress, stopping
        self._rank = rank
        self._over: deque[NDArray[np.void]] = deque(maxlen=_MOST_OVER)
        """NAMEs (k,) of each epoch that nobody needs once all ranks have ended it."""
        self._plan: WorldPlan | None = None
        self._reads: NDArray[np.int64] = np.zeros(0, np.int64)
        self._next, self._full_until, self._renewed = 0, 0.0, time.monotonic()
        self._not_put: deque[tuple[int, int]] = deque(maxlen=_MOST_NOT_PUT)
        """Epoch and number of reads whose samples will not come."""
        self._earlier: list[tuple[int, int]] = []
        """Epoch and number of this rank's reads of the epoch before, whose samples may be needed still."""
        self._untold, self._open = False, True
        """Whether some of them were not named yet, and whether others may wait for them: not if OPEN was taken away."""
        self._teller: ReadingThread | None = None
        self.token = os.urandom(TOKEN_BYTES)
        """Of this rank, in this job."""
        self._known: dict[bytes, None] = {self.token: None}
        """The tokens that it repeats."""
        self._cleared, self._unrepeated = False, False
        """Whether the server has nothing of an earlier job; whether it lacks a token that is to be repeated."""
        self._greeter: ReadingThread | None = None
        self._quiet = Event()
        self._turn, self._lock, self._putting = Lock(), Lock(), Lock()
        self._threads: list[ReadingThread] = []
        self._under_way: dict[int, float] = {}
        """Reads of the source that were begun and are not done, and when they were. Of threads that were left to
        themselves it is another one."""
        self.log, self.failed = ReadLog(), 0
        self.failure: BaseException | None = None

    def forget(self) -> None:
        """The server has nothing of an earlier job in this hash."""
        self._full_until, self._open = 0.0, True
        with closing(Line(self._own.peer, _PATIENT_S)) as line, self._putting:
            self._clear(line)

    def _clear(self, line: Line) -> bool:
        """With the lock of what is put: whether nothing of an earlier job is there. Only then are tokens repeated."""
        gone, asked = line.ask((b"UNLINK", self._own.key), (b"GET", self._own.asked))
        self._cleared = isinstance(gone, int)
        if self._cleared:
            self._learn(asked)
            line.ask(*self._opened())
        return self._cleared

    def _learn(self, asked: object) -> None:
        """The tokens that the server was given for this rank."""
        if not isinstance(asked, bytes):
            return
        told = asked[-_MOST_KNOWN * TOKEN_BYTES :]
        tokens = dict.fromkeys(told[at : at + TOKEN_BYTES] for at in range(0, len(told), TOKEN_BYTES))
        new = [token for token in tokens if token not in self._known]
        if new:
            self._known = dict.fromkeys((self.token, *[*self._known, *new][-_MOST_KNOWN + 1 :]))
            self._unrepeated = True

    def _greet(self) -> None:
        """Repeats the tokens of ranks that begin later, however long training or a read of this rank takes, and once
        more as all is read: who gave this rank its last samples may be at its first ones, and wait for that."""
        with closing(Line(self._own.peer)) as line:
            ends = False
            while not ends:
                ends = self._quiet.wait(_LOOKED_AGAIN_S)
                if self._stopping.is_set():
                    return
                if not self._unrepeated:
                    (asked,) = line.ask((b"GET", self._own.asked))
                    with self._putting:  # or what is put now would count as if it repeated what is learnt here
                        self._learn(asked)
                if self._unrepeated:
                    self._put([], line)

    def begin(self, plan: WorldPlan, reads: NDArray[np.int64], before: WorldPlan | None) -> None:
        """`reads` of `plan` are to be done from now on. `before`: the plan that was begun before this one, whose
        samples are in the server still; what an earlier one left there is deleted, and without it everything."""
        done = [(before.epoch, int(read)) for read in self._reads] if before is not None else []
        self._earlier, self._plan, self._reads, self._next = done, plan, reads, 0
        if before is None:
            self._not_put.clear()
            self._over.clear()
            self.forget()
            return
        with closing(Line(self._own.peer, _PATIENT_S)) as line:
            while self._over and self._deleted(self._over[0], line):
                self._over.popleft()
            self._put([], line)
        self._over.append(before.not_kept(self._files.layout, self._rank))

    def _deleted(self, names: NDArray[np.void], line: Line) -> bool:
        """Whether the server has nothing of NAMEs (k,) any more. Most are deleted by whoever needs them last; it is not
        asked which are left, for it would serve nobody while it lists all that it has."""
        each = (names_of(names[at : at + _AT_ONCE]) for at in range(0, len(names), _AT_ONCE))
        return all(isinstance(line.ask((b"HDEL", self._own.key, *some))[0], int) for some in each)

    def leave(self) -> None:
        """This rank goes on with nothing that it has put: the job has ended, or begins anew."""
        if self._plan is not None:
            with closing(Line(self._own.peer)) as line:
                line.ask((b"EXPIRE", self._own.key, _LEFT_S))

    def keep(self) -> None:
        """Batches are delivered: what this rank has put is kept, though it may put nothing more."""
        if time.monotonic() - self._renewed < _RENEWED_S:
            return
        self._renewed = time.monotonic()
        with closing(Line(self._own.peer)) as line:
            line.ask((b"EXPIRE", self._own.key, _FORGOTTEN_S))

    def start(self, in_flight: int) -> None:
        """Reads in threads of this process, from where it was paused."""
        try:
            for _ in range(in_flight):
                thread = ReadingThread("sentinel provider", self._stopping, self._work, self._under_way)
                self._threads.append(thread)
                thread.start()
            if self._plan is not None and self._plan.world > 1:
                self._quiet.clear()
                self._greeter = ReadingThread("sentinel provider", self._quiet, self._greet)
                self._greeter.start()
            with self._putting:
                self._tell_later()
        except BaseException:  # such as where the system has no thread left
            self._stopping.set()
            self.finish()
            raise

    def finish(self) -> None:
        """Waits until all is read, or what had begun when it was stopped. Reads that take longer than LONGEST_READ_S
        are left to themselves once there is no other. What a silent server was not told is told later, until it is
        stopped."""
        while (running := [thread for thread in self._threads if thread.is_alive()]) and not self._abandon(running):
            for thread in running:
                thread.join(_LONGEST_WAIT_S)
        self._threads = []
        self._quiet.set()
        if self._greeter is not None and self._greeter.ident is not None:
            self._greeter.join()
        self._greeter = None
        teller = self._teller
        if teller is not None and self._stopping.is_set():
            teller.join()
            self._teller = None

    def _abandon(self, running: list[ReadingThread]) -> bool:
        """Whether all that run are at reads that take too long. Then they put nothing any more: what they read will not
        come, nor, unless it was stopped, what is left of the epoch."""
        begun_after = time.monotonic() - LONGEST_READ_S
        with self._lock:
            late = list(self._under_way)
            if len(late) < len(running) or any(began > begun_after for began in self._under_way.values()):
                return False
            self._under_way = {}
            self.failed += len(late)
            self.failure = TimeoutError(f"a read takes longer than {LONGEST_READ_S:g} s")
        if not self._stopping.is_set():
            late += self._reads[self._next :].tolist()
            self._next = len(self._reads)
        self._lacks(*late)
        return True

    def _work(self, under_way: dict[int, float]) -> None:
        with closing(Line(self._own.peer)) as line:
            while (read := self._next_due()) is not None:
                whole, failure = False, None
                try:
                    whole = self._provide(read, line, under_way)
                except Exception as error:  # of a source or a library: others read these samples alone
                    failure = error
                with self._lock:
                    if under_way is not self._under_way:
                        return
                    if failure is not None:
                        self.failed, self.failure = self.failed + 1, failure
                if not whole:
                    self._lacks(read)

    def _lacks(self, *reads: int) -> None:
        """The samples of `reads` will not come: others are told as soon as the server takes that."""
        assert self._plan is not None
        with self._putting:
            self._not_put.extend((self._plan.epoch, read) for read in reads)
            self._untold = True
            self._tell_later()

    def _tell_later(self) -> None:
        """With the lock of what is put."""
        if self._untold and self._open and self._teller is None and not self._stopping.is_set():
            teller = ReadingThread("sentinel provider", self._stopping, self._tell)
            teller.start()
            self._teller = teller  # it looks at this with the lock

    def _tell(self) -> None:
        """Says which reads were not put, until the server has taken it or nobody waits for any."""
        with closing(Line(self._own.peer)) as line:
            while not self._stopping.is_set():
                self._put([], line)
                with self._putting:
                    if not (self._untold and self._open):
                        self._teller = None
                        return
                self._stopping.wait(_LONGEST_WAIT_S)

    def _next_due(self) -> int | None:
        plan = self._plan
        assert plan is not None
        with self._turn:
            while self._next < len(self._reads) and not self._stopping.is_set():
                read = int(self._reads[self._next])
                due = int(plan.staging.read_due[read]) - plan.staging.room.lead
                if due <= self._progress.delivered * plan.world:
                    self._next += 1
                    return read
                self._board.wait(_LONGEST_WAIT_S)
        return None

    def _provide(self, read: int, line: Line, under_way: dict[int, float]) -> bool:
        """Whether the server has all samples of a chunk. It is given none once the thread was left to itself."""
        plan, layout = self._plan, self._files.layout
        assert plan is not None
        if line.peer.left_alone or time.monotonic() < self._full_until:
            return False  # nobody could get its samples
        staging = plan.staging
        stays = slice(int(staging.first_stay[read]), int(staging.first_stay[read + 1]))
        samples, chunk = staging.stay_sample[stays], int(staging.read_chunk[read])
        with self._lock:
            under_way[read] = time.monotonic()
        try:
            with self.log.reading(chunk) as got:
                found = tried(lambda: self._files.chunk(chunk, samples), self._stopping.wait)
                got.told(found.ranges, found.nbytes)
        finally:
            with self._lock:
                del under_way[read]
                abandoned = under_way is not self._under_way
        if abandoned:
            return False
        data, begins = found.data, found.begins
        nbytes = layout.sample_nbytes[samples]
        sums = self._board.sums_of(data, begins, nbytes, samples)
        names, view = names_of(plan.names[stays]), data.data
        parts = zip(names, sums.tolist(), begins.tolist(), (begins + nbytes).tolist(), strict=True)
        fields = [
            (name, b"".join((total.to_bytes(SUM_BYTES, "little"), view[begin:end])))
            for name, total, begin, end in parts
        ]
        count = max(-(-len(fields) // _AT_ONCE), -(-int(nbytes.sum()) // _BYTES_AT_ONCE), 1)
        each = -(-len(fields) // count) or 1
        return all(self._put(fields[at : at + each], line) for at in range(0, len(fields), each))

    def _put(self, fields: list[tuple[bytes, bytes]], line: Line) -> bool:
        """Whether the server has taken them. One at a time: what is said last of reads that were not put is the last
        that is known."""
        with self._putting:
            if time.monotonic() < self._full_until:
                return False  # or the field would be back before the reads that were refused are named
            if not self._cleared and not self._clear(line):
                return False
            parts = (part for field in fields for part in field)
            said, _, asked = line.ask(*self._opened(*parts), (b"GET", self._own.asked))
            self._unrepeated &= not isinstance(said, int)
            self._learn(asked)  # they are repeated the next time
            if isinstance(said, Refusal):
                line.peer.refused()
                self._full_until = time.monotonic() + FULL_S
                (closed,) = line.ask((b"HDEL", self._own.key, OPEN))
                self._open = not isinstance(closed, int)
            else:
                self._open = True  # a silent server may have taken it
                self._untold &= not isinstance(said, int)
                if isinstance(said, int) and said == len(fields) + _OF_RANK:
                    self._lost_all()
        return isinstance(said, int)

    def _lost_all(self) -> None:
        """With the lock of what is put: the server did not know that this rank has begun, so it was emptied, or started
        again. What it had is named as not put."""
        if self._plan is not None:
            epoch = self._plan.epoch
            self._not_put.extend(self._earlier)
            self._not_put.extend((epoch, int(read)) for read in self._reads[: self._next])
            self._untold = True
            self._tell_later()

    def _opened(self, *fields: bytes) -> tuple[tuple[bytes, ...], ...]:
        """The commands that put names and values, and say that more may follow, and what does not."""
        not_put = np.array(self._not_put, ">u4").tobytes()
        begun = (BEGUN, self._own.note + _NOTE_ENDS + b"".join(self._known), OPEN, not_put)
        return (b"HSET", self._own.key, *begun, *fields), (b"EXPIRE", self._own.key, _FORGOTTEN_S)


def job_of(data_set: str, seed: int, rank: int) -> bytes:
    """The key of a rank's hash: `data_set` is its digest."""
    return f"sentinel:{data_set[-32:]}:{seed}:{rank}".encode()


def note_of(**given: int) -> bytes:
    """A note of what all ranks must be given alike."""
    return json.dumps(given).encode()


def unlike(rank: RankHash) -> str:
    """In what a rank whose samples do not come was given something else, by what it left in its server; "" where that
    does not tell. Asks the server."""
    with closing(Line(rank.peer)) as line:
        note, keys = line.ask((b"HGET", rank.key, BEGUN), (b"KEYS", b"sentinel:*:" + rank.key.rpartition(b":")[2]))
    if isinstance(note, bytes):  # it has begun with this data set and seed
        try:
            theirs, ours = json.loads(note.partition(_NOTE_ENDS)[0]), json.loads(rank.note)
        except ValueError:
            return ""
        theirs = theirs if isinstance(theirs, dict) else {}
        told = ((name, theirs.get(name, 0), here) for name, here in ours.items())  # an older version leaves less
        return ", ".join(f"{name}={there}, here {here}" for name, there, here in told if there != here)
    others = [key.split(b":") for key in keys if isinstance(key, bytes)] if isinstance(keys, list) else []
    _, data_set, seed, _ = rank.key.split(b":")
    seeds = [other[2].decode(errors="replace") for other in others if len(other) == 4 and other[1] == data_set]
    if seeds:
        return f"seed={seeds[0]}, here {seed.decode()}"
    return "another data set, or files of other sizes" if others else ""


def names_of(names: NDArray[np.void]) -> list[bytes]:
    """Each of NAMEs (k,) as the name of a field."""
    data, size = names.tobytes(), NAME.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]
