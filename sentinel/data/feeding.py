"""What feeds a loader: for each epoch the order of samples, and who brings their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.rules import holding
from sentinel.core.units import PAGE_BYTES
from sentinel.data.chunk_reader import IN_FLIGHT, ChunkReader
from sentinel.data.data_index import DataFiles
from sentinel.data.other_orders import others_read_less
from sentinel.data.read_log import NO_READS
from sentinel.data.sample_arena import EPOCH, RUNNING, ArenaShape, SampleArena
from sentinel.data.source_files import SourceFiles
from sentinel.data.staged_samples import BytesOfSamples, FromArena, FromDataset, FromFiles, Held
from sentinel.data.unit_choice import NO_CHOICE, READ_ALONE, UnitChoice
from sentinel.samples import (
    DIRECT,
    Begun,
    Epoch,
    Feed,
    Layout,
    Order,
    Room,
    Staging,
    epochs_ahead,
    neighbourhoods,
    plan,
    simulate,
)
from sentinel.system.numa import nodes_of
from sentinel.tiers.arena_place import ANYWHERE, ArenaPlace

_ASKED_PAGES = 1 << 16
_NO_ROOM = Room(1, 1)
"""Where nothing is staged."""
NOTHING_STAGED = "a Dataset reads by itself: nothing is staged, and memory= is not used"
SINGLE_SAMPLES = "each chunk is one sample: reading ahead saves no reads; pack small files into tar shards"
"""Of a data set that `has_single_samples`."""


@dataclass(frozen=True)
class EpochOrder:
    """`samples`: (m,) in the order of delivery. `first`: (m,) whether a chunk is read for it; `direct`: whether it is
    read alone, as planned; `held`: where peers hold it, if there are peers."""

    samples: NDArray[np.int64]
    first: NDArray[np.bool_]
    direct: NDArray[np.bool_]
    held: Held | None = None

    @classmethod
    def of_nothing(cls) -> EpochOrder:
        """Of an epoch that was delivered to its end."""
        nothing = np.zeros(0, np.bool_)
        return cls(np.zeros(0, np.int64), nothing, nothing)


@dataclass(frozen=True, eq=False)
class FedSamples:
    """The samples that a feeding brings: all of a data set. `digest`: of what lies where in it. `nbytes`: (n,) of each,
    0 where that is unknown. `room`: in which epochs are planned. `source`: what workers ask. `layout`: of the data set,
    None where nothing is known of it."""

    digest: str
    nbytes: NDArray[np.int64]
    room: Room
    source: BytesOfSamples
    layout: Layout | None = None

    @cached_property
    def neighbourhoods(self) -> Layout | None:
        """The chunks among which it is told how well an order mixes."""
        return None if self.layout is None else neighbourhoods(self.layout)

    @property
    def n(self) -> int:
        """Samples of the data set."""
        return len(self.nbytes)


class Feeding:
    """Brings samples. `begin`, then workers are made, then `start`; `pause` before workers are made again.

    As it is here nothing is read but by who needs it: there is nothing to start, to end or to tell of."""

    samples: FedSamples
    """What it brings."""

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch and be ready to carry it out."""
        raise NotImplementedError

    def start(self) -> None:
        """Bring samples."""

    def tend(self, delivered: int, ahead: int) -> None:
        """So many samples of the epoch were delivered, and up to `ahead` more are under way."""

    def pause(self) -> None:
        """Bring none, and run in no thread."""

    def give_up(self) -> None:
        """The epoch is left: what is still asked for is read by who asks."""

    def close(self) -> None:
        """Its memory goes back, and files are closed, once workers have ended; `begin` takes memory again."""
        self.samples.source.close()

    def finish(self) -> None:
        """All of the epoch was delivered."""

    def counts(self) -> Feed:
        """What was read since the loader was made, and the most memory in use."""
        return Feed(kind="executed")

    def last_reads(self) -> NDArray[np.void]:
        """(rows,) of READ, the last reads of the source by threads of this process."""
        return NO_READS

    def predicted(self) -> Feed | None:
        """What the plan of the epoch that was begun last says; None without a plan."""
        return None

    def node_pages(self) -> dict[int, int]:
        """NUMA node -> pages of the memory for samples that the kernel says are there; -1: those not touched yet.
        Empty where it does not tell."""
        return {}

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        raise NotImplementedError


def has_single_samples(layout: Layout) -> bool:
    """Whether no chunk has two samples."""
    return int(layout.chunk_samples.max()) == 1


def permutation(n: int, order: Order, epoch: int) -> NDArray[np.int64]:
    """(n,) torch's order of an epoch, as RandomSampler has it with a generator of this seed, and no other chance."""
    generator = torch.Generator().manual_seed(order.epoch_seed(epoch))
    found: NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
    return found


class FileFeeding(Feeding):
    """Samples of files, staged in an arena by a reader."""

    def __init__(
        self,
        data: DataFiles,
        layout: Layout,
        shape: ArenaShape,
        lead: int,
        in_flight: int = IN_FLIGHT,
        choice: UnitChoice = NO_CHOICE,
        place: ArenaPlace = ANYWHERE,
    ) -> None:
        """`layout`: that of `data`, cut in chunks. `lead`: how many samples ahead reads may begin. `in_flight`: how
        many chunks are read at once. `choice`: of these chunks. `place`: of the memory."""
        self._why = [said for said in (choice.why, place.why) if said]
        self._choice = choice
        self._layout = layout
        room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead).checked(layout)
        self._files = files = SourceFiles(layout, data.root, data.source, choice.gap_bytes)
        self._arena, self._reader = self._reads(shape, files, in_flight, place)
        source = FromArena(files, self._arena, data.source)
        self.samples = FedSamples(data.layout.digest, layout.sample_nbytes, room, source, data.layout)
        self._read_less: list[str] | None = None
        """What `_others` said."""
        self._done: tuple[Order, int, Staging] | None = None
        """The last epoch that was delivered to its end, while what it kept is in the arena."""
        self._now: tuple[Order, int, Staging] | None = None
        self._were_on: dict[int, int] | None = None
        """Where the pages of the arena were, if it has none any more."""

    def _reads(
        self, shape: ArenaShape, files: SourceFiles, in_flight: int, place: ArenaPlace
    ) -> tuple[SampleArena, ChunkReader]:
        """The memory, all of it reserved, and who fills it."""
        arena = SampleArena(shape, place=place)
        return arena, ChunkReader(arena, files, in_flight=in_flight)

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch, from what the one before kept if that was delivered to its end. Raises UsageError where others
        took the memory since `close`."""
        if self._were_on is not None:
            self._arena.reserve()
            self._were_on = None
        return self._begun(order, epoch, begun)

    def _begun(self, order: Order, epoch: int, begun: Begun | None, mark: int = 0) -> EpochOrder:
        """As `begin`; `mark`: that of ChunkReader.begin."""
        done = self._done
        goes_on = begun is None and done is not None and done[:2] == (order, epoch - 1)
        kept = done[2] if goes_on and done is not None else None
        staging = self._planned(order, epoch, begun, kept)
        self._done, self._now = None, (order, epoch, staging)
        self._reader.begin(staging, goes_on=goes_on, mark=mark)
        first = np.zeros(staging.n_positions, np.bool_)
        first[staging.read_due[staging.read_due < staging.n_positions]] = True
        return EpochOrder(staging.order, first, staging.stay_at == DIRECT)

    def _planned(self, order: Order, epoch: int, begun: Begun | None, before: Staging | None) -> Staging:
        """The staging of an epoch; `before`: that of the epoch before, whose kept samples are in the arena still."""
        n, ahead = self._layout.n_samples, epochs_ahead(self._layout, order, self.samples.room)
        later = (permutation(n, order, epoch + number) for number in range(2, 1 + ahead))
        known = Epoch(permutation(n, order, epoch), permutation(n, order, epoch + 1), begun, later)
        return plan(self._layout, order, self.samples.room, known, before)

    def start(self) -> None:
        """Read, in threads of this process."""
        self._reader.start()

    def pause(self) -> None:
        """No thread reads."""
        self._reader.pause()

    def give_up(self) -> None:
        """Nobody waits for the reader any more."""
        self._arena.counters[RUNNING] = self._arena.counters[EPOCH] = 0
        self._reader.pause()

    def close(self) -> None:
        """Files are closed. Its memory goes back, but where other jobs may copy from it, or it is a file of a disk."""
        super().close()
        arena = self._arena
        if arena.shape.jobs == 1 and not arena.shape.worth and not arena.place.folder:
            self._were_on, self._done = self.node_pages(), None
            arena.clear()  # who would still copy from there would have the kernel bring pages back
            arena.let_go()

    def finish(self) -> None:
        """All was delivered, or will not be: what the next epoch keeps is read to its end. If that failed for a part,
        the next epoch begins afresh: else that part would be read alone in each epoch that follows."""
        self._arena.taken[:] = 1
        self._arena.wake()
        self._reader.finish()
        self._done = self._now if self._reader.kept_all else None

    def counts(self) -> Feed:
        """What was read since the loader was made, and the most memory in use."""
        peak_bytes = self._reader.peak_pages * self._arena.shape.page_bytes
        return self._reader.counts.feed(self._layout.n_chunks, peak_bytes)

    def last_reads(self) -> NDArray[np.void]:
        """(rows,) of READ, the last reads of the source."""
        return self._reader.last_reads

    def predicted(self) -> Feed | None:
        """What the plan of the epoch that was begun last says; None before the first."""
        if self._now is None:
            return None
        return simulate(self._layout, self._now[2], self._choice.staged, self._choice.gap_bytes)

    def node_pages(self) -> dict[int, int]:
        """NUMA node -> pages of the memory for samples that the kernel says are there; -1: those not touched yet."""
        if self._were_on is not None:
            return self._were_on
        first, nbytes = self._arena.pages.ctypes.data, self._arena.pages.nbytes
        stride = -(-nbytes // PAGE_BYTES // _ASKED_PAGES) or 1  # of many pages every so many is asked for
        try:
            nodes = nodes_of(np.arange(first, first + nbytes, stride * PAGE_BYTES, dtype=np.uint64))
        except SentinelError:
            return {}
        found, counts = np.unique(np.maximum(nodes, -1), return_counts=True)
        return dict(zip(found.tolist(), (stride * counts).tolist(), strict=True))

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        error, failed, last = self._reader.error, self._reader.counts.failed, self._reader.last_failure
        tried = f"{failed} reads failed each time they were tried"
        layout = self.samples.layout
        found = holding(
            (error is not None, f"the reader ended ({error}): samples are read one by one"),
            (failed, f"{tried} (the last: {last}): their samples were read one by one"),
            (layout is not None and has_single_samples(layout), SINGLE_SAMPLES),
        )
        return [*self._why, *found, *self._others()]

    def _others(self) -> list[str]:
        """Orders that would read less than the one that was begun last."""
        if self._read_less is None and self._now is not None:
            self._read_less = others_read_less(self._layout, self.samples.room, self._now[0], self._choice)
        return self._read_less or []


class UnstagedFeeding(Feeding):
    """Samples in the same order, each read by the worker that needs it."""

    def __init__(self, samples: FedSamples, caveat: str) -> None:
        """`caveat`: why nothing is staged."""
        self.samples, self._caveat = samples, caveat

    @classmethod
    def of_files(cls, data: DataFiles, why: str = READ_ALONE) -> UnstagedFeeding:
        """Samples of files."""
        layout = data.layout
        source = FromFiles(SourceFiles(layout, data.root, data.source), data.source)
        return cls(FedSamples(layout.digest, layout.sample_nbytes, _NO_ROOM, source, layout), why)

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Torch's order."""
        samples = order.of_rank(permutation(self.samples.n, order, epoch), 0 if begun is None else begun.delivered)
        return EpochOrder(samples, np.zeros(len(samples), np.bool_), np.ones(len(samples), np.bool_))

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        return [self._caveat]


class DatasetFeeding(UnstagedFeeding):
    """Items of a map-style Dataset; its length is all that is known of it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        """Raises UsageError without items."""
        n = len(dataset)  # type: ignore[arg-type]  # what has no length was refused
        if n < 1:
            raise UsageError("the Dataset has no items", "give one that has")
        self._items = FromDataset(dataset, n)
        super().__init__(FedSamples(f"dataset of {n}", np.zeros(n, np.int64), _NO_ROOM, self._items), NOTHING_STAGED)

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Torch's order. Raises FormatError where the Dataset's length is another one by now."""
        self._items.check_length()
        return super().begin(order, epoch, begun)
