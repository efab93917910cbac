"""What each order would read of a data set, before any training: counts by simulation, times by measured reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from sentinel.core.errors import UsageError
from sentinel.core.rules import holding
from sentinel.core.units import counted
from sentinel.data.chunk_reader import reads_in_flight
from sentinel.data.data_index import Paths, RecordFiles, open_data
from sentinel.data.feeding import has_single_samples, permutation
from sentinel.data.room_here import cut_within, lead_for, memory_bytes
from sentinel.data.sample_arena import ArenaShape, shape_within
from sentinel.data.source_reads import SourceReads
from sentinel.data.unit_choice import AUTO_UNIT, UNIT, checked_unit, choose_unit
from sentinel.samples import (
    ALONE,
    KINDS,
    Epoch,
    Feed,
    Layout,
    Order,
    Room,
    SourceCosts,
    neighbourhoods,
    plan,
    shuffle_quality,
    simulate,
    staging_ns,
)
from sentinel.system.progress import telling
from sentinel.tiers.arena_place import AUTO, disk_named, place_of

RANDOM = "random access"
"""Reading each sample alone, in torch's order, with no memory for samples."""
_WORTH = 1.1
"""An order that is predicted to be less than this many times as fast as random access is not worth it."""


@dataclass(frozen=True)
class ForecastRow:
    """One order with one amount of memory, in an epoch. `memory_bytes`: of the arena, 0 where nothing is staged.
    `unit`: samples that are read at once, as the loader's; 0 for chunks that are decoded as a whole, -1 where each
    sample is read alone.

    `first_epoch`, `later_epochs`: what is read. `epoch_ns`: predicted time of a later epoch: of its reads, and of what
    samples take that go through memory (`staging_ns`), which is what `unit="auto"` compares. `speedup`: that
    of random access over it. `chunks_per_batch`, `span`: how well the order mixes, see ShuffleQuality.
    """

    order: str
    memory: str
    memory_bytes: int
    unit: int
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
    many reads random access has in flight; an order has at least `IN_FLIGHT` of chunk_reader. `cached`: all files are
    in the page cache."""

    layout: Layout
    costs: SourceCosts
    workers: int
    rows: tuple[ForecastRow, ...]
    notes: tuple[str, ...]
    cached: bool = False

    @property
    def verdict(self) -> str:
        """One sentence: what is worth it here."""
        best = max(self.rows, key=lambda row: row.speedup)
        exact = max((row for row in self.rows if row.order == "exact"), key=lambda row: row.speedup, default=None)
        if not best.worth_it and self.cached:
            return "not worth it: all files are in the page cache, where no order reads faster than random access"
        if not best.worth_it:
            return "not worth it: no order reads clearly faster than random access does from this source"
        said = f"{best.order} with {best.memory} reads {best.speedup:.1f} times as fast as random access"
        if exact is not None and exact is not best:
            also = f"exact with {exact.memory} {exact.speedup:.1f} times"
            if exact.unit == ALONE:
                return f"{said}; in exact order each sample is read alone"
            said += f", {also}" if exact.worth_it else f"; exact order is not worth it ({also})"
        return said


def forecast(
    source: Paths | RecordFiles,
    memory: str | int | Sequence[str | int] = ("5%", "20%", "50%"),
    *,
    batch_size: int = 256,
    unit: int | str = AUTO_UNIT,
    costs: SourceCosts | None = None,
    workers: int = 1,
    where: str = AUTO,
) -> Forecast:
    """What each order would read with each amount of memory. `unit`, `where`: as for `loader`; a note says
    where each memory would be. `costs`: those of a source on another machine (this machine's page cache then does not
    count); measured here if not given. `workers`: those of the loader; a plain DataLoader has one read in flight for
    each.

    An amount or an order that does not fit is left out, with a note. Raises what `loader` raises for a source, for
    `unit` and for `where`, and for a memory where no other one fits.
    """
    disk, unit = disk_named(where), checked_unit(unit)
    memory = [memory] if isinstance(memory, str | int) else memory
    data = open_data(source)
    layout, reads = data.layout, SourceReads(data, costs)
    costs = reads.costs
    of_epochs = _Epochs(layout, reads, workers, batch_size)
    rows, notes = [of_epochs.alone(UNIT if isinstance(unit, str) else unit)], list[str]()
    refused: UsageError | None = None
    with telling(f"planning epochs of {layout.n_samples} samples", lambda: f"{len(rows)} of {1 + 3 * len(memory)}"):
        for text in memory:
            try:
                shape = shape_within(memory_bytes(text, layout, disk), layout.sample_nbytes)
                place = place_of(where, shape.nbytes, lambda: reads.costs.read_bytes_per_s)
            except UsageError as error:
                notes.append(f"memory {text} is left out: {error}")
                refused = error
                continue
            left_out: dict[str, list[str]] = {}
            for kind in KINDS:
                try:
                    choice = choose_unit(reads, shape, unit, kind, workers)
                    if choice.unit == ALONE:
                        rows.append(replace(rows[0], order=kind, memory=str(text)))
                        notes.append(f"{kind} order with memory {text}: {choice.why}")
                        continue
                    cut, now = cut_within(layout, shape, choice.unit)
                    rows.append(of_epochs.row(kind, str(text), shape, cut, now, choice.gap_bytes))
                except UsageError as error:
                    left_out.setdefault(str(error), []).append(kind)
                    refused = error
                    continue
                if now and now < choice.unit:
                    notes.append(f"memory {text} is little: chunks of {counted(now, 'sample')}, not {choice.unit}")
                later = rows[-1].later_epochs
                if later.source_ranges > later.source_reads > 0:
                    said = f"what stays of a chunk is read, in {later.source_ranges / later.source_reads:.1f} ranges"
                    notes.append(f"{kind} order with memory {text}: {said}")
                if place.why:
                    notes.append(f"memory {text}: {place.why}")
            for said, kinds in left_out.items():
                of = "" if len(kinds) == len(KINDS) else f"{', '.join(kinds)} order with "
                notes.append(f"{of}memory {text} is left out: {said}")
    if refused is not None and len(rows) == 1:
        raise refused
    cached = f"{costs.cached:.0%} of the reads tried came from the kernel's page cache"
    notes += holding(
        (
            has_single_samples(layout),
            "each file is one sample: reading ahead saves no reads; pack small files into tar shards",
        ),
        (not costs.measured, "the cost of reads was declared, not measured"),
        (costs.cached, f"{cached}: files that are read for the first time cost more"),
    )
    return Forecast(layout, costs, workers, tuple(rows), tuple(dict.fromkeys(notes)), reads.cached)


class _Epochs:
    """The first epochs of a data set in each order."""

    def __init__(self, layout: Layout, reads: SourceReads, workers: int, batch_size: int) -> None:
        self._layout, self._batch_size = layout, batch_size
        self._costs, alone = reads.costs.of_reader(reads_in_flight(workers)), reads.costs.of_workers(workers)
        self._alone_ns = alone.ns(layout.n_samples, int(layout.alone_nbytes.sum()))
        self._orders = [permutation(layout.n_samples, Order(), epoch) for epoch in range(3)]
        self._neighbourhoods = neighbourhoods(layout)

    def alone(self, unit: int) -> ForecastRow:
        """Random access; reads are counted over chunks of `unit`, though it has none."""
        layout, n = self._layout, self._layout.n_samples
        nbytes = int(layout.alone_nbytes.sum())
        feed = Feed(
            n_chunks=(layout if layout.encoded else layout.cut(unit)).n_chunks,
            samples=n,
            sample_bytes=layout.nbytes,
            source_bytes=nbytes,
            direct_reads=n,
            direct_bytes=nbytes,
        )
        mixing = shuffle_quality(self._neighbourhoods, self._orders[0], self._batch_size)
        return ForecastRow(RANDOM, "-", 0, ALONE, feed, feed, self._alone_ns, 1.0, *astuple(mixing))

    def row(
        self, kind: str, memory: str, shape: ArenaShape, layout: Layout, unit: int, gap_bytes: int | None
    ) -> ForecastRow:
        """An order in memory of this shape, which reads the chunks of `layout`, of `unit` samples; `gap_bytes` as of
        `simulate`. Raises UsageError where it has too little room."""
        order = Order(kind)
        room = Room(shape.n_pages * shape.page_bytes, shape.page_bytes, lead_for(self._layout, shape))
        before = plan(layout, order, room, Epoch(self._orders[0], self._orders[1]))
        staging = before
        if kind == "exact":
            staging = plan(layout, order, room, Epoch(self._orders[1], self._orders[2]), before)
        first, later = (simulate(layout, each, self._costs, gap_bytes) for each in (before, staging))
        mixing = shuffle_quality(self._neighbourhoods, staging.order, self._batch_size)
        ns = max(later.wait_ns + staging_ns(later), 1.0)
        return ForecastRow(kind, memory, shape.nbytes, unit, first, later, ns, self._alone_ns / ns, *astuple(mixing))
