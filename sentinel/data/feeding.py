"""What feeds a loader: for each epoch the order of samples, and who brings their bytes."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.data.arena_place import ANYWHERE, ArenaPlace
from sentinel.data.chunk_reader import APART_S, IN_FLIGHT, ChunkReader
from sentinel.data.data_index import DataFiles
from sentinel.data.sample_arena import (
    DONE,
    EPOCH,
    HOST_FD,
    HOST_INODE,
    HOST_PID,
    JOINED,
    RUNNING,
    WANTED,
    ArenaShape,
    SampleArena,
    arena_of,
)
from sentinel.data.share_names import Job, ShareName
from sentinel.data.source_files import SourceFiles
from sentinel.data.staged_samples import BytesOfSamples, FromArena, FromDataset, FromFiles, Held
from sentinel.samples import DIRECT, Begun, Epoch, Feed, Layout, Order, Room, Staging, epochs_ahead, plan, simulate
from sentinel.system.numa import nodes_of

_ASKED_PAGES = 1 << 16
_SOON = 64
"""A job joins another one in the first of so many parts of an epoch. What it missed it reads sample by sample."""
READ_ALONE = "reading each sample alone is cheapest here: nothing is staged, and memory= is not used"
CACHED = "all files are in the page cache, and each sample is read alone: nothing is staged, and memory= is not used"
NOTHING_STAGED = "a Dataset reads by itself: nothing is staged, and memory= is not used"


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
    0 where that is unknown. `room`: in which epochs are planned. `source`: what workers ask."""

    digest: str
    nbytes: NDArray[np.int64]
    room: Room
    source: BytesOfSamples

    @property
    def n(self) -> int:
        """Samples of the data set."""
        return len(self.nbytes)

    def nbytes_of(self, samples: NDArray[np.int64]) -> int:
        """Bytes of `samples` (k,) together, as far as they are known."""
        return int(self.nbytes[samples].sum())


class Feeding(Protocol):
    """Brings samples. `begin`, then workers are made, then `start`; `pause` before workers are made anew."""

    @property
    def samples(self) -> FedSamples:
        """What it brings."""

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch and be ready to carry it out."""

    def start(self) -> None:
        """Bring samples."""

    def tend(self, delivered: int, ahead: int) -> None:
        """So many samples of the epoch were delivered, and up to `ahead` more are under way."""

    def pause(self) -> None:
        """Bring none, and run in no thread."""

    def give_up(self) -> None:
        """The epoch is left: what is still asked for is read by who asks."""

    def finish(self) -> None:
        """All of the epoch was delivered."""

    def counts(self) -> Feed:
        """What was read since the loader was made, and the most memory in use."""

    def predicted(self) -> Feed | None:
        """What the plan of the epoch that was begun last says; None without a plan."""

    def node_pages(self) -> dict[int, int]:
        """NUMA node -> pages of the memory for samples that the kernel says are there; -1: those not touched yet.
        Empty where it does not tell."""

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""


def permutation(n: int, order: Order, epoch: int) -> NDArray[np.int64]:
    """(n,) torch's order of an epoch, as RandomSampler has it with a generator of this seed, and no other chance."""
    generator = torch.Generator().manual_seed(order.epoch_seed(epoch))
    found: NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
    return found


class _Host(NamedTuple):
    """The job that reads an epoch for this one, and its arena."""

    job: Job
    arena: SampleArena
    order: Order
    epoch: int


class FileFeeding:
    """Samples of files, staged in an arena by a reader."""

    def __init__(
        self,
        data: DataFiles,
        layout: Layout,
        shape: ArenaShape,
        lead: int,
        in_flight: int = IN_FLIGHT,
        why: str = "",
        share: ShareName | None = None,
        place: ArenaPlace = ANYWHERE,
    ) -> None:
        """`layout`: that of `data`, cut in chunks. `lead`: how many samples ahead reads may begin. `in_flight`: how
        many chunks are read at once. `why`: samples are staged, where that was a choice. `share`: in which other jobs
        may read for this one, and this one for others. `place`: of the memory."""
        self._why, self._share = [said for said in (why, place.why) if said], share
        self._layout = layout
        room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead).checked(layout)
        files = SourceFiles(layout, data.root, data.source)
        if share is None:
            self._arena = SampleArena(shape, place=place)
            self._reader = ChunkReader(self._arena, files, in_flight=in_flight)
        else:
            self._arena = SampleArena(shape, slot=share.slot, reserved=False, place=place)
            self._reader = ChunkReader(self._arena, files, in_flight=in_flight, alive=share.alive)
            share.publish(self._arena.descriptor, self._arena.inode)
            weakref.finalize(self, share.close)
        self._host: _Host | None = None
        self._hosted, self._parted = 0, 0
        """Epochs that another job read for this one, and how many of them it did not read to their end."""
        source = FromArena(files, self._arena, data.source)
        self.samples = FedSamples(data.layout.digest, layout.sample_nbytes, room, source)
        self._done: tuple[Order, int, Staging] | None = None
        """The last epoch that was delivered to its end, while what it kept is in the arena."""
        self._now: tuple[Order, int, Staging] | None = None

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Plan an epoch, from what the one before kept if that was delivered to its end."""
        done = self._done
        before, self._host = self._host, None
        if self._share is not None:
            if begun is None and self._joined(self._share, order, epoch, before):
                return self._as_guest(order, epoch)
            self._arena.counters[HOST_PID] = 0
            try:
                self._arena.reserve()
            except UsageError:
                if not self._hosted:
                    raise
                return self._without_memory(order, epoch, begun)
            self._arena.counters[WANTED] = 0 if begun else epoch + 1
        goes_on = begun is None and done is not None and done[:2] == (order, epoch - 1)
        kept = done[2] if goes_on and done is not None else None
        staging = self._planned(order, epoch, begun, kept)
        self._done, self._now = None, (order, epoch, staging)
        self._reader.begin(staging, goes_on=goes_on, mark=0 if begun or self._share is None else epoch + 1)
        first = np.zeros(staging.n_positions, np.bool_)
        first[staging.read_due[staging.read_due < staging.n_positions]] = True
        return EpochOrder(staging.order, first, staging.stay_at == DIRECT)

    def _joined(self, share: ShareName, order: Order, epoch: int, before: _Host | None) -> bool:
        """Whether another job reads this epoch for this one. `before`: the one that read the last epoch, for which it
        waits."""
        began, m, slot = time.monotonic(), order.per_rank(self._layout.n_samples), share.slot
        while True:
            waits = False
            for job in share.others():
                if not share.agrees(job):
                    continue
                same = before is not None and before.job == job
                arena = before.arena if before and same else self._opened(job)
                if arena is None:
                    continue
                told = arena.counters
                invited = int(told[JOINED + slot]) == epoch + 1
                soon = invited or int(arena.taken_by[job.slot].sum(dtype=np.int64)) <= m // _SOON
                if int(told[EPOCH]) == epoch + 1 and told[RUNNING] and soon:
                    if not invited:
                        arena.taken[:] = 0
                        told[JOINED + slot] = epoch + 1
                    self._host = _Host(job, arena, order, epoch)
                    return True
                waits |= same and int(told[EPOCH]) in (0, epoch) and bool(told[RUNNING])  # 0 while it plans
            if not waits or time.monotonic() - began > APART_S:
                return False
            time.sleep(1e-3)

    def _opened(self, job: Job) -> SampleArena | None:
        return arena_of(job.pid, job.descriptor, job.inode, self._arena.shape, self._arena.slot)

    def _as_guest(self, order: Order, epoch: int) -> EpochOrder:
        """The order of an epoch that another job reads: what this one has of its own goes."""
        host, own = self._host, self._arena
        assert host is not None
        self._hosted += 1
        planned = self._without_memory(order, epoch, None)
        own.counters[WANTED] = epoch + 1
        own.counters[HOST_FD], own.counters[HOST_INODE] = host.job.descriptor, host.job.inode
        own.counters[HOST_PID] = host.job.pid
        return planned

    def _without_memory(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """The order of an epoch for which nothing is read here. Where nobody else does, as when others took the memory
        that a guest gave back, each sample is read alone."""
        own = self._arena
        self._reader.leave()
        own.counters[RUNNING] = own.counters[EPOCH] = 0
        own.taken[:] = 0
        own.clear()
        own.let_go()
        self._done = self._now = None
        samples = order.of_rank(permutation(self.samples.n, order, epoch), 0 if begun is None else begun.delivered)
        none = np.zeros(len(samples), np.bool_)
        return EpochOrder(samples, none, none)

    def tend(self, delivered: int, ahead: int) -> None:
        """Where another job reads for this one: whether it still does. If not, the rest is planned and read here."""
        host, own, share = self._host, self._arena, self._share
        if host is None or share is None:
            return
        m, told = host.order.per_rank(self.samples.n), host.arena.counters
        joined = int(told[JOINED + share.slot]) == host.epoch + 1
        all_read = joined and int(told[DONE]) >= m and int(told[EPOCH]) in (0, host.epoch + 1)  # 0: it was closed
        if all_read or m <= delivered + ahead:
            return
        if host.arena.serves(host.epoch + 1) and own.counters[HOST_PID] and share.alive(host.job.slot):
            return
        self._host = None
        self._parted += 1
        told[JOINED + share.slot] = 0
        try:
            own.reserve()
        except UsageError:
            return  # each sample of this epoch is read alone
        order, at = host.order, delivered + ahead
        begun = Begun(at * order.world, order.world, self.samples.room)
        samples = order.of_rank(permutation(self.samples.n, order, host.epoch))
        staging = self._planned(order, host.epoch, begun, None).after(samples[:at])
        self._now = order, host.epoch, staging
        self._reader.begin(staging, goes_on=False, copied=at)
        own.counters[WANTED] = own.counters[HOST_PID] = 0
        self._reader.start()

    def _planned(self, order: Order, epoch: int, begun: Begun | None, before: Staging | None) -> Staging:
        """The staging of an epoch; `before`: that of the epoch before, whose kept samples are in the arena still."""
        n, ahead = self._layout.n_samples, epochs_ahead(self._layout, order, self.samples.room)
        now, following, *later = (permutation(n, order, epoch + number) for number in range(1 + ahead))
        return plan(self._layout, order, self.samples.room, Epoch(now, following, begun, tuple(later)), before)

    def start(self) -> None:
        """Read, in threads of this process."""
        if self._now is not None:  # else another job does, or nobody
            self._reader.start()

    def pause(self) -> None:
        """No thread reads."""
        self._reader.pause()

    def give_up(self) -> None:
        """Nobody waits for the reader any more."""
        self._arena.counters[RUNNING] = self._arena.counters[EPOCH] = 0
        self._reader.pause()
        if self._host is not None:
            self._host.arena.counters[JOINED + self._arena.slot] = 0
            self._host = None

    def finish(self) -> None:
        """All was delivered, or will not be: what the next epoch keeps is read to its end."""
        if self._host is not None:
            arena = self._host.arena
            if not arena.taken.all() and int(arena.counters[EPOCH]) == self._host.epoch + 1:
                arena.taken[:] = 1  # those of the end that make no batch; else its reader may be at the next epoch
            return
        self._arena.taken[:] = 1
        self._arena.wake()
        self._reader.finish()
        self._done = self._now if self._reader.error is None else None

    def counts(self) -> Feed:
        """What was read since the loader was made, and the most memory in use."""
        done = self._reader.counts
        return Feed(
            kind="executed",
            n_chunks=self._layout.n_chunks,
            source_reads=done.reads,
            source_bytes=done.read_bytes,
            peak_bytes=done.peak_pages * self._arena.shape.page_bytes,
        )

    def predicted(self) -> Feed | None:
        """What the plan of the epoch that was begun last says; None where another job read some of it."""
        return None if self._now is None or self._hosted else simulate(self._layout, self._now[2])

    def node_pages(self) -> dict[int, int]:
        """NUMA node -> pages of the memory for samples that the kernel says are there; -1: those not touched yet."""
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
        found = list(self._why)
        if self._share is not None:
            found.append(self._said_of(self._share))
        if self._reader.error is not None:
            found.append(f"the reader ended ({self._reader.error}): samples are read one by one")
        if self._reader.counts.failed:
            said = f"{self._reader.counts.failed} reads failed each time they were tried"
            found.append(f"{said} (the last: {self._reader.last_failure}): their samples were read one by one")
        if int(self._layout.chunk_samples.max()) == 1:
            found.append("each chunk is one sample: reading ahead saves no reads; pack small files into tar shards")
        return found

    def _said_of(self, share: ShareName) -> str:
        """What was shared, and with whom nothing could be."""
        said = f"share {share.name!r}: another job read {self._hosted} epochs for this one"
        if self._parted:
            said += f", {self._parted} of them not to their end: jobs at unlike places of an epoch read for themselves"
        for job in share.others():
            unlike = [name for name, mine in share.reads.items() if job.reads.get(name) != mine]
            if unlike:
                return f"{said}; process {job.pid} reads for itself, with another {', '.join(unlike)}"
        return said


class UnstagedFeeding:
    """Samples in the same order, each read by the worker that needs it."""

    def __init__(self, source: BytesOfSamples, nbytes: NDArray[np.int64], digest: str, caveat: str) -> None:
        """`nbytes`: (n_samples,) their sizes, 0 where that is unknown. `caveat`: why nothing is staged."""
        self.samples = FedSamples(digest, nbytes, Room(1, 1), source)  # no room is used
        self._caveat = caveat

    @classmethod
    def of_dataset(cls, dataset: Dataset[Any]) -> UnstagedFeeding:
        """Items of a map-style Dataset; its length is all that is known of it. Raises UsageError without items."""
        n = len(dataset)  # type: ignore[arg-type]  # what has no length was refused
        if n < 1:
            raise UsageError("the Dataset has no items", "give one that has")
        return cls(FromDataset(dataset), np.zeros(n, np.int64), f"dataset of {n}", NOTHING_STAGED)

    @classmethod
    def of_files(cls, data: DataFiles, why: str = READ_ALONE) -> UnstagedFeeding:
        """Samples of files."""
        layout = data.layout
        source = FromFiles(SourceFiles(layout, data.root, data.source), data.source)
        return cls(source, layout.sample_nbytes, layout.digest, why)

    def begin(self, order: Order, epoch: int, begun: Begun | None) -> EpochOrder:
        """Torch's order."""
        samples = order.of_rank(permutation(self.samples.n, order, epoch), 0 if begun is None else begun.delivered)
        return EpochOrder(samples, np.zeros(len(samples), np.bool_), np.ones(len(samples), np.bool_))

    def start(self) -> None:
        """Nothing is to be done, here and below."""

    def tend(self, delivered: int, ahead: int) -> None:
        """As `start`."""

    def pause(self) -> None:
        """As `start`."""

    def give_up(self) -> None:
        """As `start`."""

    def finish(self) -> None:
        """As `start`."""

    def counts(self) -> Feed:
        """Nothing is read but by workers."""
        return Feed(kind="executed")

    def predicted(self) -> Feed | None:
        """There is no plan."""
        return None

    def node_pages(self) -> dict[int, int]:
        """There is no memory for samples."""
        return {}

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        return [self._caveat]


def cut_within(layout: Layout, shape: ArenaShape, most: int) -> tuple[Layout, int]:
    """The layout in chunks of at most `most` samples, or of as many as suit the arena, and that number; 0 where chunks
    are read whole. Raises UsageError where the arena does not hold the largest sample, or the largest whole chunk."""
    if not layout.encoded:
        unit = unit_within(layout, shape, most)
        return layout.cut(unit), unit
    pages = np.add.reduceat(-(-layout.sample_nbytes // shape.page_bytes), layout.first_sample[:-1])
    largest = int(pages.argmax())
    if int(pages[largest]) > shape.n_pages:
        needed = int(pages[largest]) * (shape.page_bytes + 4) + ArenaShape(shape.n_samples, 0, shape.page_bytes).nbytes
        raise UsageError(
            f"memory for {format_bytes(shape.n_pages * shape.page_bytes)} of samples does not hold the"
            f" {int(layout.chunk_samples[largest])} samples of chunk {largest} of the data set, in"
            f" {layout.files[int(layout.chunk_file[largest])]}, which are decoded at once",
            f"give at least {format_bytes(needed + 2 * PAGE_BYTES)}, or write smaller row groups or shards",
        )
    return layout, 0


def unit_within(layout: Layout, shape: ArenaShape, most: int) -> int:
    """How many samples to read at once: at most `most`, a power of two below it if a quarter of the arena is less.

    Raises UsageError where the arena does not hold the largest sample.
    """
    pages = -(-layout.sample_nbytes // shape.page_bytes)
    largest = int(pages.max())
    if largest > shape.n_pages:
        needed = largest * (shape.page_bytes + 4) + ArenaShape(shape.n_samples, 0, shape.page_bytes).nbytes
        raise UsageError(
            f"memory for {format_bytes(shape.n_pages * shape.page_bytes)} of samples does not hold the largest one",
            f"give at least {format_bytes(4 * needed)}",
        )
    unit = most
    while unit > 1 and unit * largest > shape.n_pages // 4:
        unit //= 2
    return unit
