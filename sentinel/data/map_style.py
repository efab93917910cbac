"""Samples, a map-style Dataset, and OrderSampler: for those who build their own DataLoader."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from threading import RLock
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler, get_worker_info

from sentinel.core.errors import UsageError
from sentinel.core.units import plain
from sentinel.data.batching import check_function, checked_count
from sentinel.data.data_index import FILES, Paths, RecordFiles, open_data
from sentinel.data.feeding import EpochOrder, Feeding
from sentinel.data.file_feeding import feeding_of_files
from sentinel.data.loading import EPOCHS, check_process
from sentinel.data.served_samples import Served
from sentinel.data.source_files import SourceFiles
from sentinel.data.staged_samples import BytesOfSamples, FromArena, FromFiles, Request, Transform, transformed
from sentinel.runtime.process import RUNTIME
from sentinel.samples import Feed, Layout, Order

_OPTIONS = ("workers", "unit", "where", "index_path")
_AT_ONCE = 4096
"""Positions that become numbers of Python's together."""
_EXACT = Order()
_WHAT = "the memory of these samples"


class PlacedIndex(int):
    """The number of a sample, and where in the epoch it is delivered. To everybody but Samples it is the number."""

    position: int
    first: bool
    direct: bool

    @classmethod
    def of(cls, sample: int, position: int, first: bool, direct: bool) -> PlacedIndex:
        """`first`: a chunk is read for it; `direct`: it is read alone, as planned."""
        found = cls(sample)
        found.position, found.first, found.direct = position, first, direct
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacedIndex.of, (int(self), self.position, self.first, self.direct)


class FetchedSamples(Dataset[Any]):
    """Samples as a worker has them, by number: those that an OrderSampler has placed in the epoch come out of the
    memory (`placed`), all others are read alone (`alone`)."""

    def __init__(self, placed: BytesOfSamples, alone: BytesOfSamples, transform: Transform | None) -> None:
        self._placed, self._alone, self._transform = placed, alone, transform
        self._passed, self._before = -1, 0
        """Up to where places were given up, -1 while no batch of this epoch was late here; where the last batch was."""

    def __getitem__(self, index: int) -> Any:
        """One sample, transformed."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples, transformed. Raises FormatError, naming file and sample, where the source does not have one as it
        was indexed."""
        items: list[Any] = []
        for request in requests_in(indices):
            items += self._transformed(request)
        return items

    def _transformed(self, request: Request) -> list[Any]:
        served, placed = Served(samples=len(request.samples)), self._placed
        source = self._alone if request.position < 0 else placed
        arena = source if isinstance(source, FromArena) else None
        if arena is not None:
            self._pass_over(arena, request.position)
        found = source.fetch(request, served)
        if arena is not None and served.late:
            # a framework may have skipped places before: they are never copied, and fill the memory
            self._passed = request.position
            arena.pass_over(0, self._passed)
        return transformed(found, self._transform, source, request.samples)

    def _pass_over(self, placed: FromArena, position: int) -> None:
        """Once a batch was late in this epoch, gives up what is skipped before a batch at `position`. Where there are
        other workers, who may be a batch behind, only what lies before the last batch here."""
        if position < self._before:
            self._passed = -1  # another epoch
        worker = get_worker_info()
        stop = position if worker is None or worker.num_workers == 1 else self._before
        if 0 <= self._passed < stop:
            placed.pass_over(self._passed, stop)
            self._passed = stop
        self._before = position


class Samples(FetchedSamples):
    """The samples of a data set, for your own DataLoader: `DataLoader(samples, sampler=OrderSampler(samples))`.

    With that sampler, samples come in its order from memory that one reader fills, as those of `loader` do. Without it,
    each sample is read alone. Only `loader` has states, restarted workers and a report. For one thread and one
    iteration at a time; worker processes only fetch samples.
    """

    def __init__(
        self,
        source: Paths | RecordFiles,
        transform: Transform | None = None,
        *,
        memory: str | int,
        order: Order = _EXACT,
        **options: Any,
    ) -> None:
        """`source`, `transform`, `memory` and, of the options, `unit`, `where` and `index_path`: those of `loader`.
        `order`: its kind, seed and rank. `workers`: how many the DataLoader has. The memory is reserved at once.

        Raises what `loader` raises.
        """
        for name in options:
            if name not in _OPTIONS:
                raise UsageError(f"there is no option {name!r}", f"the options are {', '.join(_OPTIONS)}")
        check_function("transform", transform)
        options["workers"] = checked_count("workers", options.get("workers", 0), 0)
        if not isinstance(order, Order):
            raise UsageError(f"order={order!r} is no Order", "give Order('exact', seed=...)")
        if not isinstance(source, FILES):
            what = f"a {type(source).__name__} is not read from files"
            raise UsageError(what, "give files to Samples; a Dataset goes to a DataLoader, or to loader(), as it is")
        data = open_data(source, options.pop("index_path", None))
        self._feeding, self._unit = feeding_of_files(data, memory, order, **options)
        alone = FromFiles(SourceFiles(data.layout, data.root, data.source), data.source)
        super().__init__(self._feeding.samples.source, alone, transform)
        self.layout: Layout = data.layout
        """Where the samples lie."""
        self.order = order
        self._lock = RLock()
        self._iteration, self._reads, self._ended = 0, False, True
        RUNTIME.paused_by_forks.add(self)
        self._process = os.getpid()
        weakref.finalize(self, _give_up, self._feeding, self._process)

    def __len__(self) -> int:
        """Of the data set, whatever a rank delivers."""
        return self.layout.n_samples

    def __reduce__(self) -> tuple[Any, ...]:
        """What a worker needs of it."""
        return FetchedSamples, (self._placed, self._alone, self._transform)

    @property
    def unit(self) -> int:
        """Samples that are read at once: -1 where each is read alone, 0 for chunks that are decoded as a whole."""
        return self._unit

    @property
    def feed(self) -> Feed:
        """What the reader has read so far. Samples that workers read alone are not counted."""
        return self._feeding.counts()

    def begin(self, epoch: int) -> tuple[int, EpochOrder]:
        """An iteration, whose number is returned, over an epoch. What an earlier one has not delivered is given up.
        Raises UsageError in a forked child, and where others took the memory since `close`."""
        check_process(self._process, _WHAT)
        with self._lock:
            if self._reads:
                (self._feeding.finish if self._ended else self._feeding.give_up)()
            self._iteration += 1
            self._reads = self._ended = False
            planned = self._feeding.begin(self.order, epoch, None)
            self._feeding.start()
            self._reads = True
            return self._iteration, planned

    def goes_on(self, iteration: int, *, ended: bool = False) -> bool:
        """Whether no other iteration has begun since. `ended`: all of its samples were asked for. Raises what `begin`
        raises."""
        check_process(self._process, _WHAT)
        if iteration != self._iteration:
            return False
        self._ended = ended
        return True

    def close(self) -> None:
        """Ends the reader, closes files and frees the memory, but a file on a disk; otherwise all of it goes with the
        last use of these samples. Workers that are at a batch read it alone. The next iteration takes memory again."""
        with self._lock:
            self._iteration += 1
            self._reads = False
            _give_up(self._feeding, self._process)
            if os.getpid() == self._process:
                self._feeding.close()
                self._alone.close()

    # --- forks: a child must not find locks that a thread of the reader held ---

    def before_fork(self) -> None:
        """No thread reads until the child is there."""
        self._lock.acquire()
        if self._reads:
            self._feeding.pause()

    def after_fork(self) -> None:
        """In the parent."""
        try:
            if self._reads:
                self._feeding.start()
        finally:
            self._lock.release()


def _give_up(feeding: Feeding, process: int) -> None:
    """In the process that made the samples: in a forked child others' reads would end."""
    if os.getpid() == process:
        feeding.give_up()


class OrderSampler(Sampler[int]):
    """The order of `samples`. Each iteration over it is an epoch, and reads the samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples, self._epoch = samples, 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without a call it is the one after the last."""
        epoch = plain(epoch)
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < EPOCHS:
            raise UsageError(f"there is no epoch {epoch!r}", "give a number of at least 0, below 2**62")
        self._epoch = epoch

    def __len__(self) -> int:
        """Samples that this rank delivers in an epoch."""
        return self._samples.order.per_rank(len(self._samples))

    def __iter__(self) -> Iterator[int]:
        """Raises UsageError in a worker process, and where another iteration has begun."""
        if get_worker_info() is not None:
            raise UsageError("an OrderSampler is iterated over in a worker", "give it to the DataLoader as sampler=")
        samples = self._samples
        iteration, planned = samples.begin(self._epoch)
        self._epoch += 1
        m = len(planned.samples)
        for begin in range(0, m, _AT_ONCE):  # all of an epoch as Python's numbers: 56 bytes for each
            cut = slice(begin, begin + _AT_ONCE)
            columns = (planned.samples[cut].tolist(), planned.first[cut].tolist(), planned.direct[cut].tolist())
            for position, (sample, first, direct) in enumerate(zip(*columns, strict=True), begin):
                if not samples.goes_on(iteration, ended=position + 1 == m):
                    raise UsageError("another iteration of these samples has begun", "finish one before the next")
                yield PlacedIndex.of(sample, position, first, direct)


def requests_in(indices: Sequence[int]) -> Iterator[Request]:
    """The batch as requests, each of positions that follow one another; samples without a place are read alone."""
    begin = 0
    for stop in range(1, len(indices) + 1):
        if stop < len(indices) and _follows(indices[stop - 1], indices[stop]):
            continue
        run = indices[begin:stop]
        placed = [index for index in run if isinstance(index, PlacedIndex)]
        numbers, alone = np.array([int(index) for index in run], np.int64), np.ones(len(run), np.bool_)
        if placed:
            first, direct = (np.array([getattr(index, name) for index in placed]) for name in ("first", "direct"))
            yield Request(placed[0].position, numbers, first, direct)
        else:
            yield Request(-1, numbers, ~alone, alone)
        begin = stop


def _follows(one: int, other: int) -> bool:
    if isinstance(one, PlacedIndex) and isinstance(other, PlacedIndex):
        return other.position == one.position + 1
    return not isinstance(one, PlacedIndex) and not isinstance(other, PlacedIndex)
