"""How much memory this machine has for samples, and how far ahead of training they are read."""

from __future__ import annotations

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes, parse_amount
from sentinel.data.sample_arena import ArenaShape
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
