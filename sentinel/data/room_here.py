"""How much memory this machine has for samples, and what fits it: how far ahead of training samples are read, and how
many at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import PAGE_BYTES, format_bytes, parse_amount
from sentinel.data.sample_arena import ArenaShape, page_bytes_for
from sentinel.samples import Layout
from sentinel.system.disks import Disk
from sentinel.system.limits import available_bytes

_SHARE, _MOST_LEAD = 128, 1024


def lead_for(layout: Layout, shape: ArenaShape) -> int:
    """How many samples before their first use chunks may be read, whatever else is in the arena: a 128th of what it
    holds. It is taken off what windows can hold. Mostly there is more room, since windows must fit where most of them
    meet, and then the reader is further ahead.

    Not told by workers or batches, for orders other than exact depend on the room.
    """
    held = shape.n_pages * shape.page_bytes * layout.n_samples // max(layout.nbytes, 1)
    return max(1, min(held // _SHARE, _MOST_LEAD))


def memory_bytes(memory: str | int, layout: Layout, disk: Disk | None = None) -> int:
    """What `memory` means for this data set, in bytes. `disk`: of the file that takes its place. Raises UsageError for
    no amount and for more than there is."""
    try:
        nbytes = parse_amount(memory).of(layout.nbytes)
    except UsageError as error:
        raise UsageError(error.what, 'write memory="20%" of the data set, "8GiB", or bytes') from None
    there, whose = (available_bytes(), "this machine") if disk is None else (disk.free_bytes, str(disk.folder))
    if nbytes > there:
        raise UsageError(
            f"memory={memory!r} is {format_bytes(nbytes)}, {whose} has {format_bytes(there)} left",
            f"give at most {format_bytes(there)}",
        )
    return nbytes


def cut_within(layout: Layout, shape: ArenaShape, most: int) -> tuple[Layout, int]:
    """The layout in chunks of at most `most` samples, or of as many as suit the arena, and that number; 0 where chunks
    are read whole. Raises UsageError where the arena does not hold the largest sample, or the largest whole chunk."""
    if not layout.encoded:
        unit = unit_within(layout, shape, most)
        return layout.cut(unit), unit
    pages = np.add.reduceat(-(-layout.sample_nbytes // shape.page_bytes), layout.first_sample[:-1])
    largest = int(pages.argmax())
    if int(pages[largest]) > shape.n_pages:
        needed = int(pages[largest]) * (shape.page_bytes + 4) + replace(shape, n_pages=0).nbytes
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
        needed = largest * (shape.page_bytes + 4) + replace(shape, n_pages=0).nbytes
        raise UsageError(
            f"memory for {format_bytes(shape.n_pages * shape.page_bytes)} of samples does not hold the largest one",
            f"give at least {format_bytes(4 * needed)}",
        )
    unit = most
    while unit > 1 and unit * largest > shape.n_pages // 4:
        unit //= 2
    return unit


def memory_for_unit(sample_nbytes: NDArray[np.int64], unit: int) -> int:
    """With so many bytes of memory `unit_within` takes `unit` samples at once."""
    page = page_bytes_for(sample_nbytes)
    largest = -(-int(sample_nbytes.max()) // page)
    return ArenaShape(len(sample_nbytes), 0, page).nbytes + 4 * unit * largest * (page + 4) + 2 * PAGE_BYTES
