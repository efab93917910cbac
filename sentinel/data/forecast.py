"""What each order would read of a data set, before any training: counts by simulation, times by measured reads."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.data.arena_place import AUTO, disk_named, place_of
from sentinel.data.chunk_reader import MOST_IN_FLIGHT, reads_in_flight
from sentinel.data.data_index import DataFiles, Paths, RecordFiles, open_data
from sentinel.data.feeding import permutation
from sentinel.data.page_cache import in_page_cache
from sentinel.data.room_here import cut_within, lead_for, memory_bytes
from sentinel.data.sample_arena import shape_within
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.stored_file import LocalFile, cannot_be_read, opened
from sentinel.samples import KINDS, Epoch, Feed, Layout, Order, Room, SourceCosts, plan, shuffle_quality, simulate
from sentinel.system.progress import telling

RANDOM = "random access"
"""Reading each sample alone, in torch's order, with no memory for samples."""
_WORTH = 1.1
"""An order that is predicted to be less than this many times as fast as random access is not worth it."""
_SMALL, _LARGE, _ROUNDS, _LARGE_ROUNDS = 4096, 4 << 20, 64, 8


@dataclass(frozen=True)
class ForecastRow:
    """One order with one amount of memory, in an epoch. `memory_bytes`: of the arena, 0 for random access.

    `first_epoch`, `later_epochs`: what is read. `epoch_ns`: predicted time of a later epoch's reads. `speedup`: that
    of random access over it. `chunks_per_batch`, `span`: how well the order mixes, see ShuffleQuality.
    """

    order: str
    memory: str
    memory_bytes: int
    first_epoch: Feed
    later_epochs: Feed
    epoch_ns: float
    speedup: float
    chunks_per_batch: float
    span: float

    @property
    def worth_it(self) -> bool:
        """Whether it is predicted to be clearly faster than random access."""
        return self.speedup >= _WORTH


@dataclass(frozen=True)
class Forecast:
    """`rows`: random access, then each order with each memory. `notes`: sentences to read before them. `workers`: how
    many reads random access has in flight; an order has at least `IN_FLIGHT` of chunk_reader."""

    layout: Layout
    costs: SourceCosts
    workers: int
    rows: tuple[ForecastRow, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence: what is worth it here."""
        best = max(self.rows, key=lambda row: row.speedup)
        exact = max((row for row in self.rows if row.order == "exact"), key=lambda row: row.speedup, default=None)
        if not best.worth_it:
            return "not worth it: no order reads clearly faster than random access does from this source"
        said = f"{best.order} with {best.memory} reads {best.speedup:.1f} times as fast as random access"
        if exact is not None and exact is not best:
            also = f"exact with {exact.memory} {exact.speedup:.1f} times"
            said += f", {also}" if exact.worth_it else f"; exact order is not worth it ({also})"
        return said


def forecast(
    source: Paths | RecordFiles,
    memory: Sequence[str | int] = ("5%", "20%", "50%"),
    *,
    batch_size: int = 256,
    unit: int = 64,
    costs: SourceCosts | None = None,
    workers: int = 1,
    where: str = AUTO,
) -> Forecast:
    """What each order would read with each amount of memory. `costs`: of the source, measured here if not given.
    `workers`: those of the loader; a plain DataLoader has a read of each in flight. `where`: as `loader` takes it; a
    note says where each memory would lie.

    An amount or an order that does not fit is left out, with a note. Raises what `loader` raises for a source and for
    `where`, and for a memory where no other one fits.
    """
    disk = disk_named(where)
    data = open_data(source)
    layout = data.layout
    costs = measured = costs or measured_costs(data)
    alone = costs.of_reader(max(workers, 1)).ns(layout.n_samples, int(layout.alone_nbytes.sum()))
    staged = costs.of_reader(reads_in_flight(workers))
    nothing = _alone(layout, unit, batch_size, alone)
    rows, notes = [nothing], []
    refused: UsageError | None = None
    with telling(f"planning epochs of {layout.n_samples} samples", lambda: f"{len(rows)} of {1 + 3 * len(memory)}"):
        for text in memory:
            try:
                nbytes = memory_bytes(text, layout, disk)
                shape = shape_within(nbytes, layout.sample_nbytes)
                cut, now = cut_within(layout, shape, unit)
                place = place_of(where, shape.nbytes, lambda: measured.read_bytes_per_s)
            except UsageError as error:
                notes.append(f"memory {text} is left out: {error}")
                refused = error
                continue
            if now and now < unit:
                notes.append(f"memory {text} is little: {now} samples are read at once, not {unit}")
            if place.why:
                notes.append(f"memory {text}: {place.why}")
            room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead_for(layout, shape))
            for kind in KINDS:
                try:
                    rows.append(_row(cut, room, kind, (str(text), shape.nbytes), batch_size, staged, alone))
                except UsageError as error:
                    notes.append(f"{kind} order with memory {text} is left out: {error}")
                    refused = error
    if refused is not None and len(rows) == 1:
        raise refused
    if int(layout.chunk_samples.max()) == 1:
        notes.append("each file is one sample: reading ahead saves no reads; pack small files into tar shards")
    if not costs.measured:
        notes.append("what reads cost was declared, not measured")
    if costs.cached:
        said = f"{costs.cached:.0%} of the reads tried came from the kernel's page cache"
        notes.append(f"{said}: files that are read for the first time cost more")
    return Forecast(layout, costs, workers, tuple(rows), tuple(notes))


def _alone(layout: Layout, unit: int, batch_size: int, ns: float) -> ForecastRow:
    cut = layout if layout.encoded else layout.cut(unit)
    order = permutation(layout.n_samples, Order(), 0)
    n = layout.n_samples
    feed = Feed(
        n_chunks=cut.n_chunks,
        samples=n,
        sample_bytes=layout.nbytes,
        source_bytes=int(layout.alone_nbytes.sum()),
        direct_reads=n,
        direct_bytes=int(layout.alone_nbytes.sum()),
    )
    quality = shuffle_quality(cut, order, batch_size)
    return ForecastRow(RANDOM, "-", 0, feed, feed, ns, 1.0, quality.chunks_per_batch, quality.span)


def _row(
    layout: Layout, room: Room, kind: str, memory: tuple[str, int], batch_size: int, costs: SourceCosts, alone: float
) -> ForecastRow:
    order, n = Order(kind), layout.n_samples
    orders = [permutation(n, order, epoch) for epoch in range(3)]
    before = plan(layout, order, room, Epoch(orders[0], orders[1]))
    staging = plan(layout, order, room, Epoch(orders[1], orders[2]), before) if kind == "exact" else before
    first, later = simulate(layout, before, costs), simulate(layout, staging, costs)
    quality = shuffle_quality(layout, staging.order, batch_size)
    ns = max(float(later.wait_ns), 1.0)
    return ForecastRow(kind, *memory, first, later, ns, alone / ns, quality.chunks_per_batch, quality.span)


def measured_costs(data: DataFiles) -> SourceCosts:
    """What reads of these files cost now: latency and bandwidth of small and of large reads at random places, and how
    many small ones the source serves side by side, up to MOST_IN_FLIGHT. What the kernel has in its page cache counts
    as such, for so a job meets it. Where chunks are decoded as a whole, that counts as reading."""
    layout = data.layout
    if int(layout.file_nbytes.sum()) < 1:
        raise UsageError("the files are empty", "give files with samples")
    chance = np.random.Generator(np.random.PCG64(0))

    def some(count: int) -> list[int]:
        return [int(sample) for sample in chance.integers(layout.n_samples, size=count)]

    small = [_read(data, sample, _SMALL) for sample in some(_ROUNDS)]
    latency = float(np.mean(np.sort([read.ns for read in small])[: _ROUNDS - _ROUNDS // 16]))  # but the slowest
    with ThreadPoolExecutor(MOST_IN_FLIGHT) as pool:
        began = time.monotonic_ns()
        list(pool.map(lambda sample: _read(data, sample, _SMALL), some(4 * MOST_IN_FLIGHT)))
        in_flight = 4 * MOST_IN_FLIGHT * latency / (time.monotonic_ns() - began)
        large = [_read(data, sample, _LARGE) for sample in some(_LARGE_ROUNDS)]
        rate = float(np.median([read.nbytes / max(read.ns - latency, 0.1 * read.ns) for read in large]))
        began = time.monotonic_ns()
        together = pool.map(lambda sample: _read(data, sample, _LARGE), some(_LARGE_ROUNDS))
        rate = max(rate, sum(read.nbytes for read in together) / (time.monotonic_ns() - began))
    if layout.encoded:
        rate = 1 / (1 / rate + float(np.median([_decode_ns(data, sample) for sample in some(_LARGE_ROUNDS)])))
    cached = sum(read.cached for read in small) / len(small)
    return SourceCosts(latency, rate * 1e9, min(max(in_flight, 1.0), MOST_IN_FLIGHT), measured=True, cached=cached)


class _Read(NamedTuple):
    ns: int
    nbytes: int
    cached: bool


def _read(data: DataFiles, sample: int, nbytes: int) -> _Read:
    """One read of up to `nbytes` at a sample, and whether the kernel had the first of them in memory."""
    layout = data.layout
    chunk = int(layout.chunk_of[sample])
    file = int(layout.chunk_file[chunk])
    at = int(layout.chunk_offset[chunk]) + (0 if layout.encoded else int(layout.sample_offset[sample]))
    at = max(min(at, int(layout.file_nbytes[file]) - nbytes), 0)
    found = opened(os.path.join(data.root, layout.files[file]))
    if isinstance(found, LocalFile):
        os.posix_fadvise(found.descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no more is read than is asked for
    try:
        cached = isinstance(found, LocalFile) and in_page_cache(found.descriptor, at)
        began = time.monotonic_ns()
        got = len(found.read(at, nbytes))
        return _Read(time.monotonic_ns() - began, got, cached)
    except OSError as error:
        raise cannot_be_read(found.path, "file", error) from error


def _decode_ns(data: DataFiles, sample: int) -> float:
    """ns that reading and decoding the whole chunk of a sample takes, for each of its bytes."""
    files, chunk = SourceFiles(data.layout, data.root, data.source), int(data.layout.chunk_of[sample])
    began = time.monotonic_ns()
    files.chunk(chunk, np.array([sample]))
    return (time.monotonic_ns() - began) / int(data.layout.chunk_nbytes[chunk])
