"""The data set as a worker of a DataLoader sees it: samples come from the arena, late or lost ones from their file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from sentinel.core.errors import CapabilityError, FormatError
from sentinel.data.batch_room import found_no_room, no_room_for
from sentinel.data.hit_places import UNTOLD, ArenaNodes, HitsByPlace
from sentinel.data.sample_arena import (
    DONE,
    HOST_FD,
    HOST_INODE,
    HOST_PID,
    PULSE,
    WANTED,
    Missing,
    SampleArena,
    arena_of,
)
from sentinel.data.served_samples import Moments, Served
from sentinel.data.small_tensors import with_small_ones_inside
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.source import Source

Transform = Callable[[Any], Any]

PATIENCE_S = 5.0
"""How long nothing may happen in the reader before a sample that it should bring is read without it. A read that is
under way counts as progress for its first LONGEST_READ_S (chunk_reader)."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 20e-6, 1e-3


class Held(NamedTuple):
    """Of each sample of an epoch or a batch, where peers hold what is kept: the rank that reads its chunk, the NAME of
    its stay, whether nobody needs that afterwards, and whether it is in the memory of another machine."""

    reader: NDArray[np.int64]
    name: NDArray[np.void]
    last: NDArray[np.bool_]
    remote: NDArray[np.bool_]

    def cut(self, of: slice) -> Held:
        """Of some of the samples."""
        return Held(self.reader[of], self.name[of], self.last[of], self.remote[of])


class Request(NamedTuple):
    """A batch: `samples` of the data set at positions [position, position + batch) of the epoch.

    `first`: where a sample is the one that its chunk is read for. `direct`: where it is read alone, as planned.
    `held`: where peers hold it, if there are peers; `following`: what the same worker is asked for next, then.
    """

    position: int
    samples: NDArray[np.int64]
    first: NDArray[np.bool_]
    direct: NDArray[np.bool_]
    held: Held | None = None
    following: Request | None = None


class Staged(NamedTuple):
    """The samples of a batch that came from memory. `raws`: the bytes of each, None for those that are read alone.
    `places`: (k,) in which memory each lay, as HitsByPlace has them; of those that are read alone whatever."""

    raws: list[memoryview | None]
    places: NDArray[np.int64]


class Failed(NamedTuple):
    """A FormatError on its way from a worker: an exception of several arguments can't be pickled."""

    path: str
    field: str
    rule: str


class BytesOfSamples:
    """Gives the bytes of samples, and counts how."""

    def fetch(self, request: Request, served: Served) -> Iterable[Any]:
        """The samples of a request: what is staged is copied at once, and each is decoded when it is asked for."""
        raise NotImplementedError

    def check(self, samples: NDArray[np.int64]) -> None:
        """Raises FormatError if bytes of `samples` (k,) were given unchecked, and a file is not as it was indexed. Here
        none are: they are checked before they are decoded, or nothing is known of them."""

    def close(self) -> None:
        """Files are opened again when they are needed."""


def transformed(
    items: Iterable[Any], transform: Transform | None, source: BytesOfSamples, samples: NDArray[np.int64]
) -> list[Any]:
    """`items`, fetched from `source`, of `samples` (k,), transformed. Raises FormatError, naming file and sample, where
    the source does not have one as it was indexed: also where what `transform` raised may come of that."""
    try:
        return list(items) if transform is None else [transform(item) for item in items]
    except FormatError:
        raise
    except Exception:
        source.check(samples)
        raise


class FromArena(BytesOfSamples):
    """Samples of files: out of the arena, or read alone where they are not there in time."""

    def __init__(self, files: SourceFiles, arena: SampleArena, source: Source) -> None:
        self._files, self._arena, self._source, self._patience_s = files, arena, source, PATIENCE_S
        self._nodes = ArenaNodes()
        self._host: tuple[tuple[int, int, int], SampleArena | None] = ((0, 0, 0), None)

    def fetch(self, request: Request, served: Served) -> Iterable[Any]:
        """The samples of a request. Raises FormatError, naming file and sample, where the source does not have one as
        it was indexed."""
        nbytes = self._files.layout.sample_nbytes[request.samples]
        arena = self._arena_of_reader()
        raws, places = self._staged(arena, request, nbytes, served)
        numbers = np.arange(len(raws))
        there = np.array([raw is not None for raw in raws], np.bool_)
        remote = np.zeros(len(raws), np.bool_) if request.held is None else there & request.held.remote
        hit, brought = there & ~request.first & ~remote, there & request.first & ~remote
        served.hits, served.brought, served.direct_reads = int(hit.sum()), int(brought.sum()), int((~there).sum())
        served.hit_bytes, served.brought_bytes = int(nbytes[hit].sum()), int(nbytes[brought].sum())
        served.by_place = HitsByPlace.of(places[hit], nbytes[hit])
        served.remote_hits, served.remote_bytes = int(remote.sum()), int(nbytes[remote].sum())
        served.sample_bytes, served.alone_bytes = int(nbytes.sum()), int(nbytes[~there].sum())
        served.when.alone_ns = 0 if there.all() else time.monotonic_ns()
        served.unstaged_bytes = int(self._files.layout.alone_nbytes[request.samples].sum())
        if served.direct_reads:
            arena.take(request.position + numbers[~there])
        planned = ~there & request.direct if self._files.layout.encoded else ~there
        served.direct_bytes = int(self._files.layout.alone_nbytes[request.samples[planned]].sum())
        for number, raw in zip(numbers[planned].tolist(), self._alone(request.samples[planned]), strict=True):
            raws[number] = raw
        served.direct_bytes += _by_chunk(self._files, request.samples, numbers[~there & ~planned], raws)
        return _decoded(self._source, self._files, request.samples, _let_go(raws))

    def close(self) -> None:
        """As BytesOfSamples says."""
        self._files.close()

    def pass_over(self, begin: int, stop: int) -> None:
        """The reader waits no more for copies of positions [begin, stop); who still asks for one reads it alone."""
        self._arena.take(slice(begin, stop))

    def _alone(self, samples: NDArray[np.int64]) -> Iterable[memoryview]:
        """The bytes of each of `samples` (k,), read alone."""
        return self._files.alone(samples)

    def _arena_of_reader(self) -> SampleArena:
        """The arena of this job, or of the one that reads for it. If that one has ended, this job's, in which nobody
        reads then."""
        own = self._arena
        at = int(own.counters[HOST_PID]), int(own.counters[HOST_FD]), int(own.counters[HOST_INODE])
        if at != self._host[0]:
            self._host = at, arena_of(*at, own.shape, own.slot) if at[0] else None
        return self._host[1] or own

    def _staged(self, arena: SampleArena, request: Request, nbytes: NDArray[np.int64], served: Served) -> Staged:
        """Each sample that is in the arena or comes there. Read alone are those that are planned so or lost, or nothing
        happened in the reader for as long as patience lasts. Where jobs share, also those that will not come any more:
        they were here before this job was."""
        samples, began, shared = request.samples, 0, arena.shape.jobs > 1
        raws: list[memoryview | None] = [None] * len(samples)
        places = np.full(len(samples), UNTOLD, np.int64)
        waiting = np.flatnonzero(~request.direct)
        pulse, since, pause, doubted = -1, 0, _FIRST_WAIT_S, False
        while True:
            running = arena.serves(int(self._arena.counters[WANTED]))
            come = int(arena.counters[DONE])  # both before it is looked: what came until then is found
            found = arena.copy(samples[waiting], nbytes[waiting])
            absent, done = [], []
            for number, raw in zip(waiting.tolist(), found, strict=True):
                if raw is Missing.ABSENT or (raw is Missing.DAMAGED and not doubted):
                    absent.append(number)
                    continue
                done.append(number)
                if isinstance(raw, memoryview):
                    raws[number] = raw
                served.lost += raw is Missing.LOST
                served.damaged += raw is Missing.DAMAGED
            doubted = Missing.DAMAGED in found  # looked at twice: it may have been written at that moment
            if done:  # those that are read alone too: the reader may wait for their room
                places[done] = self._nodes.of(arena, samples[done])
                arena.take(request.position + np.array(done))
            waiting, now = np.array(absent, np.int64), time.monotonic_ns()
            if not len(waiting):
                break
            again = arena.taken[request.position + waiting] != 0  # they were here: a worker was lost
            served.again += int(again.sum())
            waiting = waiting[~again]
            if shared:
                here = request.position + waiting >= come
                here |= arena.entries[samples[waiting]] != 0  # brought again while it was copied
                served.apart += len(waiting) - int(here.sum())
                waiting = waiting[here]
            if not len(waiting):
                break
            if not running:
                served.apart += len(waiting) if shared else 0
                served.ended += 0 if shared else len(waiting)
                break
            if not began:
                began, served.waits = now, len(waiting)
            if int(arena.counters[PULSE]) != pulse:
                pulse, since = int(arena.counters[PULSE]), now
            elif now - since > self._patience_s * 1e9:
                served.late += len(waiting)
                self._arena.counters[HOST_PID] = 0  # a job that has stopped is not waited for twice
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT_S)
        served.when.wait_began_ns = began
        served.wait_ns += time.monotonic_ns() - began if began else 0
        return Staged(raws, places)


class FromFiles(BytesOfSamples):
    """Samples of files, each read alone."""

    def __init__(self, files: SourceFiles, source: Source) -> None:
        self._files, self._source = files, source

    def fetch(self, request: Request, served: Served) -> Iterable[Any]:
        """The samples of a request, each read when it is asked for, since nobody waits for room. Raises what
        `FromArena.fetch` raises."""
        served.direct_reads = len(request.samples)
        served.alone_bytes = served.sample_bytes = int(self._files.layout.sample_nbytes[request.samples].sum())
        served.direct_bytes = int(self._files.layout.alone_nbytes[request.samples].sum())
        served.unstaged_bytes = served.direct_bytes
        return _decoded(self._source, self._files, request.samples, self._files.alone(request.samples))

    def check(self, samples: NDArray[np.int64]) -> None:
        """As BytesOfSamples says."""
        self._files.check(samples)

    def close(self) -> None:
        """As BytesOfSamples says."""
        self._files.close()


class FromDataset(BytesOfSamples):
    """Samples of a map-style Dataset, which reads them by itself."""

    def __init__(self, dataset: Dataset[Any], n: int) -> None:
        """`n`: its length as the loader was made."""
        self._dataset, self._n = dataset, n

    def fetch(self, request: Request, served: Served) -> Iterable[Any]:
        """The Dataset's items, as they are. Raises FormatError where its length is another one by now, or it gives
        more or fewer items than it was asked for."""
        self.check_length()
        served.direct_reads, numbers = len(request.samples), request.samples.tolist()
        several = getattr(self._dataset, "__getitems__", None)
        if several is None:
            return (self._dataset[number] for number in numbers)
        items = list(several(numbers))
        if len(items) != len(numbers):
            said = f"gave {len(items)} items where it was asked for {len(numbers)}: give one for each number, in order"
            raise FormatError(self._name, "__getitems__", said)
        return items

    def check_length(self) -> None:
        """Raises FormatError where it is another one than when the loader was made."""
        now = len(self._dataset)  # type: ignore[arg-type]  # what has no length was refused
        if now != self._n:
            said = f"{now} now, {self._n} when the loader was made: make the loader again"
            raise FormatError(self._name, "length", said)

    @property
    def _name(self) -> str:
        return f"Dataset {type(self._dataset).__name__}"


class StagedSamples(Dataset[Any]):
    """What the DataLoader inside asks: a Request gives the samples of a batch, transformed, and how they were got."""

    def __init__(self, source: BytesOfSamples, transform: Transform | None) -> None:
        self._source, self._transform = source, transform

    def __getitems__(self, request: Request) -> tuple[list[Any] | Failed, Served]:
        """The batch, not yet collated. All of its bytes are copied before the first sample is transformed: a transform
        that takes long keeps no other worker waiting for room."""
        worker = get_worker_info()
        when = Moments(-1 if worker is None else worker.id, time.monotonic_ns())
        served = Served(samples=len(request.samples), when=when)
        try:
            items = self._source.fetch(request, served)
            found = transformed(items, self._transform, self._source, request.samples)
        except FormatError as error:
            return Failed(error.path, error.field, error.rule), served
        when.ended_ns = time.monotonic_ns()
        if served.direct_reads:
            when.alone_ns = when.alone_ns or when.began_ns
        return found, served

    def __getitem__(self, index: int) -> Any:
        raise CapabilityError("one sample of a loader", "it gives batches", "iterate over the loader")


def collated(
    got: tuple[list[Any] | Failed, Served], collate_fn: Callable[[list[Any]], Any] | None = None, room: int = 0
) -> tuple[Any, Served]:
    """The samples of a batch as `collate_fn` collates them, or in a worker NoRoom where it finds none in /dev/shm; and
    what is beside them. `room`: bytes of small tensors that a worker may send inside the message of a batch."""
    items, served = got
    works = get_worker_info() is not None
    if isinstance(items, Failed):
        return items, served
    try:
        batch = (collate_fn or torch.utils.data.default_collate)(items)
        return with_small_ones_inside(batch, room) if works else batch, served
    except RuntimeError as error:
        if works and found_no_room(error):
            return no_room_for(items), served
        raise


def _by_chunk(
    files: SourceFiles, samples: NDArray[np.int64], numbers: NDArray[np.int64], raws: list[memoryview | None]
) -> int:
    """Reads those of `samples` that `numbers` (k,) name into `raws`; returns the bytes read. Of a chunk that is decoded
    as a whole a lost worker's batch may have many samples: it is read once for them."""
    layout, nbytes = files.layout, 0
    chunks = layout.chunk_of[samples[numbers]]
    for chunk in np.unique(chunks).tolist():
        own = numbers[chunks == chunk]
        found = files.endured(partial(files.chunk, chunk, samples[own]))
        data, begins = found.data, found.begins
        ends = begins + layout.sample_nbytes[samples[own]]
        for number, begin, end in zip(own.tolist(), begins.tolist(), ends.tolist(), strict=True):
            raws[number] = data[begin:end].copy().data  # a view would keep all of the chunk
        nbytes += found.nbytes
    return nbytes


def _let_go(raws: list[memoryview | None]) -> Iterable[memoryview]:
    """Each of them; the list keeps it no longer."""
    for number, raw in enumerate(raws):
        raws[number] = None
        assert raw is not None
        yield raw


def _decoded(
    source: Source, files: SourceFiles, samples: NDArray[np.int64], raws: Iterable[memoryview]
) -> Iterable[Any]:
    """Each sample, decoded when it is asked for. Raises FormatError, naming it."""
    of_file = files.layout.chunk_file[files.layout.chunk_of[samples]].tolist()
    path_of = {file: files.path_of_file(file) for file in set(of_file)}
    for number, file, raw in zip(samples.tolist(), of_file, raws, strict=True):  # it asks whether there are more bytes
        try:
            sample = source.decode(raw, path_of[file])
        except FormatError as error:
            files.check(np.array([number]))  # of another file it says so
            raise FormatError(error.path, f"{error.field} sample {number}", error.rule) from error
        yield sample
