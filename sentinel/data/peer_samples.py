"""The data set as a worker of a rank with peers sees it: a batch comes from the servers, or is read from its files.

All servers are asked for their samples of a batch before the first of them answers, and for those of the worker's next
batch before this one is decoded: they answer while training uses it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.data.chunk_reader import MOST_IN_FLIGHT
from sentinel.data.hit_places import IN_SERVER
from sentinel.data.peer_exchange import BEGUN, OPEN, SUM_BYTES, names_of
from sentinel.data.peers import Line, Peer, RankHash
from sentinel.data.resp_client import Refusal, RespConnection
from sentinel.data.retries import tried
from sentinel.data.sample_arena import SampleArena
from sentinel.data.served_samples import Served
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.source import Source
from sentinel.data.sources.stored_file import OutageError
from sentinel.data.staged_samples import FromArena, Held, Request, Staged

LATE_S = 2.0
"""How long a sample is waited for that is needed next, before its rank is not waited for any more."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5e-3, 5e-3
_ASKED_AGAIN_S = 1.0
"""After so long a rank that does not repeat the token is asked for it again."""
_ASKED_FOR_S = b"60"
"""So long the server keeps what a rank is asked, which may not have begun."""
_LOOKED_AT = 1 << 16
"""Positions before a batch; workers are never further ahead."""
_OF_PROCESS = ("_lines", "_asked", "_asked_for", "_due", "_ahead", "_not_put", "_unknown", "_pool")


class _Asked(NamedTuple):
    rank: int
    numbers: NDArray[np.int64]
    """(k,) Of samples in their batch."""
    sent: RespConnection | None


class _Batch:
    """What has come of the samples (k,) of a request, and what of it is no sample."""

    def __init__(self, request: Request, nbytes: NDArray[np.int64]) -> None:
        self.request, self.held, self.nbytes = request, _held(request), nbytes
        self.raws: list[memoryview | None] = [None] * len(nbytes)
        self.there = np.zeros(len(nbytes), np.bool_)
        self.wrong = np.zeros(len(nbytes), np.bool_)
        """(k,) Whether the server has something else in place of the sample."""
        name = self.held.name
        self.reads: NDArray[np.uint64] = name["epoch"].astype(np.uint64) << np.uint64(32) | name["read"]
        """(k,) The read that brings each: its epoch, then its number."""


class FromPeers(FromArena):
    """Samples that servers hold. What they do not bring is read alone, several at once."""

    def __init__(
        self, files: SourceFiles, board: SampleArena, ranks: Sequence[RankHash], source: Source, token: bytes
    ) -> None:
        """`board`: where workers tell which positions they have, which holds no samples. `ranks`: where each puts its
        samples. `token`: what a rank of this job repeats, once it was asked to."""
        super().__init__(files, board, source)
        self._ranks, self._token = list(ranks), token
        self._in_process()

    def _in_process(self) -> None:
        self._lines: dict[Peer, Line] = {}
        self._asked: list[_Asked] = []
        self._asked_for: tuple[int, bytes] | None = None
        """Position and names of the batch."""
        self._due: dict[int, Future[memoryview]] = {}
        self._ahead: dict[int, Future[memoryview]] = {}
        """Samples of this batch and of the next one that are read alone."""
        self._not_put: dict[int, NDArray[np.uint64]] = {}
        """Rank -> reads whose samples it has not put, and will not."""
        self._unknown: dict[int, float] = {}
        """Rank -> when it is asked again to repeat the token, which it did not the last time."""
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._in_process()

    def introduce(self) -> None:
        """Asks all ranks to repeat the token: they may have done so before the first sample is asked for. To a silent
        server it is said later."""
        for number, rank in enumerate(self._ranks):
            self._line(number).send(*self._introduction(rank), unread=2)
        self.settle()
        self.hang_up()

    def _introduction(self, rank: RankHash) -> tuple[tuple[bytes, ...], ...]:
        return (b"APPEND", rank.asked, self._token), (b"EXPIRE", rank.asked, _ASKED_FOR_S)

    def settle(self) -> None:
        """Waits until the servers have deleted what this process has used last."""
        for line in self._lines.values():
            line.settle()

    def hang_up(self) -> None:
        """Ends the connections of this process; they are made again when they are needed."""
        for line in self._lines.values():
            line.close()
        self._asked, self._asked_for = [], None

    def _staged(self, arena: SampleArena, request: Request, nbytes: NDArray[np.int64], served: Served) -> Staged:
        """Each sample that the servers have, or get in time."""
        batch = _Batch(request, nbytes)
        waiting = np.flatnonzero(~request.direct)
        if self._asked_for == _asked_for(request):
            asked, pause = self._asked, 0.0  # that was long ago
        else:
            if self._asked:
                self.hang_up()  # it was asked for a batch that nobody wants
            asked, pause = self._ask(request, waiting), _FIRST_PAUSE_S
        self._asked, self._asked_for = [], None
        self._due, self._ahead = self._ahead, {}
        began, needed_since = 0, 0.0
        while True:
            self._receive(asked, batch)
            waiting = self._still_waiting(arena, batch, waiting, served)
            if not len(waiting):
                break
            if not began:
                began, served.waits = time.monotonic_ns(), len(waiting)
            now, asked = time.monotonic(), []
            if arena.taken[max(0, request.position - _LOOKED_AT) : request.position].all():
                needed_since = needed_since or now
                if now - needed_since > LATE_S:
                    for rank in np.unique(batch.held.reader[waiting]).tolist():
                        self._ranks[rank].came_late()
                    continue
            time.sleep(pause)
            pause = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            asked = self._ask(request, waiting)
        served.when.wait_began_ns = began
        served.wait_ns += time.monotonic_ns() - began if began else 0
        self._go_on(batch)
        return Staged(batch.raws, np.full(len(nbytes), IN_SERVER, np.int64))

    def _still_waiting(
        self, arena: SampleArena, batch: _Batch, waiting: NDArray[np.int64], served: Served
    ) -> NDArray[np.int64]:
        """Those of `waiting` (k,) that may come yet. Counts the others."""
        come, position = batch.there[waiting], batch.request.position
        if come.any():
            arena.take(position + waiting[come])
        absent: NDArray[np.int64] = waiting[~come]
        if not len(absent):
            return absent
        again = arena.taken[position + absent] != 0  # they were here: a worker was lost
        served.again += int(again.sum())
        absent = absent[~again]
        if not arena.serves(0):
            served.ended += len(absent)
            return np.zeros(0, np.int64)
        readers = batch.held.reader[absent]
        may_come = ~batch.wrong[absent]
        for rank in set(readers.tolist()):
            if not self._ranks[rank].waited_for:
                may_come &= readers != rank
            elif rank in self._not_put:
                may_come &= (readers != rank) | ~np.isin(batch.reads[absent], self._not_put[rank])
        served.lost += int((~may_come).sum())
        left: NDArray[np.int64] = absent[may_come]
        return left

    def _line(self, rank: int) -> Line:
        peer = self._ranks[rank].peer
        return self._lines.setdefault(peer, Line(peer))

    def _ask(
        self, request: Request, numbers: NDArray[np.int64], used: dict[int, list[bytes]] | None = None
    ) -> list[_Asked]:
        """Sends to each server which samples of a batch it is asked for, and which names nobody needs any more."""
        held, used = _held(request), used or {}
        readers, asked = held.reader[numbers], []
        for rank in sorted({*readers.tolist(), *used}):
            own, key = numbers[readers == rank], self._ranks[rank].key
            commands: list[tuple[bytes, ...]] = [(b"HDEL", key, *used[rank])] if rank in used else []
            if time.monotonic() >= self._unknown.get(rank, inf):
                self._unknown[rank] = time.monotonic() + _ASKED_AGAIN_S
                commands += self._introduction(self._ranks[rank])
            unread = len(commands)
            if len(own):
                commands.append((b"HMGET", key, BEGUN, OPEN, *names_of(held.name[own])))
            sent = self._line(rank).send(*commands, unread=unread)
            if len(own):
                asked.append(_Asked(rank, own, sent))
        return asked

    def _receive(self, asked: list[_Asked], batch: _Batch) -> None:
        """What servers answer."""
        for rank, numbers, sent in asked:
            said = self._line(rank).reply(sent)
            if isinstance(said, Refusal):
                self._ranks[rank].peer.refused()
            if isinstance(said, list) and len(said) == 2 + len(numbers):
                if self._token not in (said[0] or b""):  # it has not begun: what is there is an earlier job's
                    self._unknown.setdefault(rank, 0.0)
                    said = [None] * len(said)
                else:
                    self._unknown.pop(rank, None)
                self._ranks[rank].looked_at(has_begun=said[0] is not None, is_open=said[1] is not None)
                named = said[1] or b""
                self._not_put[rank] = np.frombuffer(named[: len(named) // 8 * 8], ">u8").astype(np.uint64)
                self._check(batch, numbers, said[2:])

    def _check(self, batch: _Batch, numbers: NDArray[np.int64], values: list[bytes | None]) -> None:
        """`values` (k,) are what a server has in place of the samples `numbers` (k,) of a batch."""
        sizes = np.array([-1 if value is None else len(value) for value in values])
        whole = sizes == SUM_BYTES + batch.nbytes[numbers]
        batch.wrong[numbers[~whole & (sizes >= 0)]] = True
        own = numbers[whole]
        if not len(own):
            return
        found = [values[number] or b"" for number in np.flatnonzero(whole).tolist()]
        data = bytearray().join(found)
        ends = np.cumsum(sizes[whole])
        begins = ends - batch.nbytes[own]
        sums = self._arena.sums_of(np.frombuffer(data, np.uint8), begins, batch.nbytes[own], batch.request.samples[own])
        sound = sums == np.array([int.from_bytes(value[:SUM_BYTES], "little") for value in found])
        batch.wrong[own[~sound]], batch.there[own[sound]] = True, True
        view = memoryview(data)
        for number, begin, end in zip(own[sound].tolist(), begins[sound].tolist(), ends[sound].tolist(), strict=True):
            batch.raws[number] = view[begin:end]

    def _go_on(self, batch: _Batch) -> None:
        """Deletes what nobody needs any more, and asks for the next batch."""
        held, following = batch.held, batch.request.following
        last = np.flatnonzero((batch.there | batch.wrong) & held.last)
        readers = held.reader[last]
        used = {rank: names_of(held.name[last[readers == rank]]) for rank in set(readers.tolist())}
        if following is None:
            self._ask(batch.request, last[:0], used)
            return
        self._asked = self._ask(following, np.flatnonzero(~following.direct), used)
        self._asked_for = _asked_for(following)
        self._read_ahead(following)

    def _read_ahead(self, request: Request) -> None:
        """Begins to read what is known to be read alone."""
        if self._files.layout.encoded:
            return  # what is lost of a chunk is read together
        readers = _held(request).reader
        left_alone = [rank for rank in set(readers.tolist()) if self._ranks[rank].peer.left_alone]
        alone = request.samples[request.direct | np.isin(readers, left_alone)]
        self._ahead = {sample: self._begun(sample) for sample in alone.tolist()}

    def _begun(self, sample: int) -> Future[memoryview]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MOST_IN_FLIGHT, thread_name_prefix="sentinel alone")
        return self._pool.submit(_read, self._files, sample)

    def _alone(self, samples: NDArray[np.int64]) -> Iterable[memoryview]:
        """The bytes of each of `samples` (k,), read several at once."""
        begun = [self._due.get(sample) or self._begun(sample) for sample in samples.tolist()]
        return map(self._brought, samples.tolist(), begun)

    def _brought(self, sample: int, reading: Future[memoryview]) -> memoryview:
        """What a thread of the pool reads. The end of an outage is waited for here, where Ctrl-C ends that: Python
        itself ends only after those threads."""
        try:
            return reading.result()
        except OutageError:
            return self._files.endured(partial(self._files.sample, sample)).data


def _read(files: SourceFiles, sample: int) -> memoryview:
    return tried(partial(files.sample, sample)).data


def _held(request: Request) -> Held:
    assert request.held is not None
    return request.held


def _asked_for(request: Request) -> tuple[int, bytes]:
    return request.position, _held(request).name.tobytes()
