"""What ranks do for one another: each reads its chunks once, and hands their samples over by a server.

A rank has a hash in the server of its machine. A field of it is a sample that the plan of all ranks keeps; its value is
the arena's checksum of the sample, then its bytes. Whoever needs a sample last deletes it. What is not there in time,
or is not the sample, is read alone: nothing that happens to a server costs more than time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.data.peers import LEFT_ALONE_S, Peer
from sentinel.data.retries import tried
from sentinel.data.sample_arena import SampleArena
from sentinel.data.source_files import SourceFiles
from sentinel.samples.world_plan import NAME, RankShare, WorldPlan

LATE_S = 2.0
"""How long a sample is waited for that is needed next, before its rank is left alone."""
_FORGOTTEN_S = 3600
"""After so long without a chunk the server deletes what a rank left there."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.5e-3, 10e-3
_AT_ONCE = 256
"""Samples in a command."""
_SUM_BYTES = 4


class Progress:
    """How far this rank is."""

    def __init__(self, arena: SampleArena) -> None:
        self._taken = arena.taken
        self.n_positions = 0

    @property
    def delivered(self) -> int:
        """Positions that workers have copied."""
        return int(np.count_nonzero(self._taken[: self.n_positions]))


class ChunkProvider:
    """Reads the chunks that fall to this rank, as the plan of all ranks has them, and puts their samples into the
    server of this machine. Calls are for one thread, and not for a forked child."""

    def __init__(self, files: SourceFiles, arena: SampleArena, peer: Peer, progress: Progress, stopping: Event) -> None:
        self._files, self._arena, self._peer, self._progress, self._stopping = files, arena, peer, progress, stopping
        self._plan: WorldPlan | None = None
        self._reads: NDArray[np.int64] = np.zeros(0, np.int64)
        self._key, self._next = b"", 0
        self._turn, self._lock = Lock(), Lock()
        self._threads: list[Thread] = []
        self.reads = self.read_bytes = self.failed = 0
        self.failure: BaseException | None = None

    def forget(self, key: bytes) -> None:
        """The server has nothing of an earlier job in this hash."""
        self._peer.ask(lambda client: client.unlink(key))

    def begin(self, plan: WorldPlan, reads: NDArray[np.int64], key: bytes, before: WorldPlan | None) -> None:
        """`reads` of `plan` are to be done from now on. `before`: the plan of the epoch before, whose samples are in
        the server still; what an earlier one left there is deleted, and without it everything."""
        self._plan, self._reads, self._key, self._next = plan, reads, key, 0
        if before is None:
            self.forget(key)
            return
        there: list[bytes] = self._peer.ask(lambda client: client.hkeys(key)) or []
        names = np.frombuffer(b"".join(name for name in there if len(name) == NAME.itemsize), NAME)
        needed = set(names_of(before.older_names))  # by ranks that are at the end of that epoch
        left = [name for name in names_of(names[names["epoch"] < before.epoch]) if name not in needed]
        for at in range(0, len(left), _AT_ONCE):
            self._peer.ask(partial(_delete, key, left[at : at + _AT_ONCE]))

    def start(self, in_flight: int) -> None:
        """Reads in threads of this process, from where it was paused."""
        self._threads = [Thread(target=self._work, name="sentinel provider", daemon=True) for _ in range(in_flight)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Waits until all is read, or what had begun when it was stopped."""
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self) -> None:
        while (read := self._next_due()) is not None:
            try:
                self._provide(read)
            except Exception as error:  # of a source or a library: others read these samples alone
                with self._lock:
                    self.failed, self.failure = self.failed + 1, error

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
                self._stopping.wait(_LONGEST_PAUSE_S)
        return None

    def _provide(self, read: int) -> None:
        plan, layout = self._plan, self._files.layout
        assert plan is not None
        if self._peer.left_alone:
            return  # nobody would get them
        staging = plan.staging
        stays = slice(int(staging.first_stay[read]), int(staging.first_stay[read + 1]))
        samples, chunk = staging.stay_sample[stays], int(staging.read_chunk[read])
        data, begins = tried(lambda: self._files.chunk(chunk, samples), self._stopping.wait)
        with self._lock:
            self.reads, self.read_bytes = self.reads + 1, self.read_bytes + int(layout.chunk_nbytes[chunk])
        nbytes = layout.sample_nbytes[samples]
        sums = self._arena.sums_of(data, begins, nbytes, samples)
        parts = zip(sums.tolist(), begins.tolist(), (begins + nbytes).tolist(), strict=True)
        values = [total.to_bytes(_SUM_BYTES, "little") + data[begin:end].tobytes() for total, begin, end in parts]
        names = names_of(plan.names[stays])
        for at in range(0, len(names), _AT_ONCE):
            some = dict(zip(names[at : at + _AT_ONCE], values[at : at + _AT_ONCE], strict=True))
            self._peer.ask(partial(_put, self._key, some))


class SampleFetcher:
    """Brings samples out of the servers into the arena of this rank, group by group."""

    def __init__(self, arena: SampleArena, nbytes: NDArray[np.int64], progress: Progress, stopping: Event) -> None:
        """`nbytes`: (n_samples,) of each sample."""
        self._arena, self._nbytes, self._progress, self._stopping = arena, nbytes, progress, stopping
        self._share: RankShare | None = None
        self._group = 1
        self._peers: list[Peer] = []
        self._keys: list[bytes] = []
        self._late_until: list[float] = []
        self.late = 0
        """How often a rank was left alone, for its samples did not come."""

    def begin(self, share: RankShare, group: int, peers: Sequence[Peer], keys: Sequence[bytes]) -> None:
        """`peers`, `keys`: by rank, where its samples are."""
        self._share, self._group, self._peers, self._keys = share, group, list(peers), list(keys)
        self._late_until = [0.0] * len(peers)

    def bring(self, group: int, samples: NDArray[np.int64], pages: NDArray[np.int32], read: int) -> NDArray[np.uint64]:
        """The entries of `samples` (k,) of that group, once they are in `pages`, or will not come."""
        share, arena = self._share, self._arena
        assert share is not None
        first = share.staging.first_stay
        at = share.staging.stay_until[first[group] : first[group + 1]]
        by_sample = np.argsort(share.staging.order[at])
        at = at[by_sample[np.searchsorted(share.staging.order[at], samples, sorter=by_sample)]]
        nbytes = self._nbytes[samples]
        values = self._values(share, at, nbytes)
        there = np.array([value is not None for value in values], np.bool_)
        entries = arena.lost(samples, read)
        if not there.any():
            return entries
        counts = -(-nbytes // arena.shape.page_bytes)
        ends = np.cumsum(nbytes[there])
        sums = np.array([int.from_bytes(value[:_SUM_BYTES], "little") for value in values if value is not None])
        data = np.frombuffer(b"".join(value[_SUM_BYTES:] for value in values if value is not None), np.uint8)
        own = pages[np.repeat(there, counts)]
        put = arena.put(data, ends - nbytes[there], nbytes[there], samples[there], own, read)
        entries[there] = np.where(arena.sums[samples[there]] == sums, put, entries[there])
        return entries

    def _values(self, share: RankShare, at: NDArray[np.int64], nbytes: NDArray[np.int64]) -> list[bytes | None]:
        """What the servers have for the positions `at` (k,); None for what does not come in time."""
        values: list[bytes | None] = [None] * len(at)
        names, readers, last = names_of(share.name[at]), share.reader[at].tolist(), share.last[at].tolist()
        missing, needed_since, pause = set(range(len(at))), 0.0, _PAUSE_S
        first = int(at.min())
        while True:
            stopping = self._stopping.is_set()
            needed = self._progress.delivered + self._group >= first  # before they are asked for
            for rank in sorted({readers[number] for number in missing}):
                numbers = [number for number in missing if readers[number] == rank]
                found = self._peers[rank].ask(partial(_get, self._keys[rank], [names[number] for number in numbers]))
                if found is None:
                    missing.difference_update(numbers)  # it does not answer
                    continue
                used = []
                for number, value in zip(numbers, found, strict=True):
                    if value is not None:
                        missing.discard(number)
                        values[number] = value if len(value) == _SUM_BYTES + int(nbytes[number]) else None
                        used += [names[number]] if last[number] else []
                if used:
                    self._peers[rank].ask(partial(_delete, self._keys[rank], used))
            now = time.monotonic()
            if not missing or stopping:
                return values
            if needed:
                needed_since = needed_since or now
                missing = {number for number in missing if now >= self._late_until[readers[number]]}
                if now - needed_since > LATE_S:
                    for rank in {readers[number] for number in missing}:
                        self._late_until[rank], self.late = now + LEFT_ALONE_S, self.late + 1
                    return values
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def names_of(names: NDArray[np.void]) -> list[bytes]:
    """Each of NAMEs (k,) as the name of a field."""
    data, size = names.tobytes(), NAME.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def _put(key: bytes, values: dict[bytes, bytes], client: Any) -> None:
    together = client.pipeline(transaction=False)
    together.hset(key, mapping=values)
    together.expire(key, _FORGOTTEN_S)
    together.execute()


def _get(key: bytes, names: list[bytes], client: Any) -> list[bytes | None]:
    found: list[bytes | None] = client.hmget(key, names)
    return found


def _delete(key: bytes, names: list[bytes], client: Any) -> None:
    client.hdel(key, *names)
