"""From files, an order and an amount of memory to what feeds them: the same for a loader and for `Samples`."""

from __future__ import annotations

from sentinel.data.chunk_reader import reads_in_flight
from sentinel.data.data_index import DataFiles
from sentinel.data.feeding import Feeding, FileFeeding, UnstagedFeeding
from sentinel.data.room_here import cut_within, lead_for, memory_bytes
from sentinel.data.sample_arena import MOST_JOBS, shape_within
from sentinel.data.share_names import SHARE_VERSION, ShareName, identity_of
from sentinel.data.shared_feeding import SharedFeeding
from sentinel.data.source_reads import SourceReads
from sentinel.data.unit_choice import AUTO_UNIT, checked_unit, choose_unit
from sentinel.samples import ALONE, Order
from sentinel.tiers.arena_place import AUTO, disk_named, place_of


def feeding_of_files(
    data: DataFiles,
    memory: str | int,
    order: Order,
    *,
    workers: int = 0,
    unit: int | str = AUTO_UNIT,
    where: str = AUTO,
    share: str | None = None,
) -> tuple[Feeding, int]:
    """What feeds the samples of `data` to so many workers, and the samples that it reads at once: ALONE where each is
    read by who needs it, 0 where chunks are read whole. The memory is reserved. The other arguments are those of
    `loader`, which raises what this raises."""
    layout, unit = data.layout, checked_unit(unit)
    nbytes = memory_bytes(memory, layout, disk_named(where))
    shape = shape_within(nbytes, layout.sample_nbytes, 1 if share is None else MOST_JOBS)
    reads = SourceReads(data)
    place = place_of(where, shape.nbytes, lambda: reads.costs.read_bytes_per_s)
    choice = choose_unit(reads, shape, unit, order.kind, workers, shares=share is not None)
    if choice.unit == ALONE:
        return UnstagedFeeding.of_files(data, choice.why), ALONE
    cut, now = cut_within(layout, shape, choice.unit)
    lead, in_flight = lead_for(layout, shape), reads_in_flight(workers)
    if share is None:
        return FileFeeding(data, cut, shape, lead, in_flight, choice, place), now
    said = {"seed": order.seed, "rank": order.rank, "world": order.world, "drop_last": order.drop_last, "unit": now}
    room = [shape.n_pages, shape.page_bytes, lead]
    name = ShareName(share, identity_of(data), {**said, "memory": room, "version": SHARE_VERSION})
    return SharedFeeding(data, cut, shape, lead, in_flight, choice, place, name), now
