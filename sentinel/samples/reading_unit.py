"""The unit of reading: a whole chunk or part of it, by what a source's reads cost."""

from __future__ import annotations

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes
from sentinel.samples.feed import Feed
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.source_costs import SourceCosts
from sentinel.samples.steady_reads import part_of, staging_ns, steady_feed

WHOLE = 0
"""The unit that is a whole chunk."""
ALONE = -1
"""No unit: each sample is read alone, when it is needed."""


def unit_costs(layout: Layout, room_bytes: int, costs: SourceCosts) -> dict[int, float]:
    """Samples of a chunk (powers of two below those of the largest one, then WHOLE) -> ns of reading a sample in exact
    order from the second epoch on, predicted from part of the data set. Of a chunk only what stays is read, and gaps
    that take no longer than another read. Units for which the room is too little are left out; where chunks are encoded
    there is WHOLE only."""
    return {unit: feed.wait_ns / feed.samples for unit, feed in _feeds(layout, room_bytes, costs).items()}


def best_unit(layout: Layout, room_bytes: int, costs: SourceCosts, alone: SourceCosts | None = None) -> int:
    """The unit that costs least, for `layout.cut`, or WHOLE; ALONE where that costs no more. `costs`: what the reader
    sees; `alone`: what workers see that read each sample alone, None if they are not to. Raises UsageError for a room
    too small for any."""
    feeds = _feeds(layout, room_bytes, costs)
    if not feeds:
        raise UsageError(
            f"memory of {format_bytes(room_bytes)} is too little for any unit of reading", "give more memory"
        )
    if alone is None:
        return min(feeds, key=lambda unit: feeds[unit].wait_ns)
    found = {unit: (feed.wait_ns + staging_ns(feed)) / feed.samples for unit, feed in feeds.items()}
    found[ALONE] = alone.ns(layout.n_samples, layout.nbytes) / layout.n_samples
    return min(found, key=lambda unit: found[unit])


def _feeds(layout: Layout, room_bytes: int, costs: SourceCosts) -> dict[int, Feed]:
    """Unit -> the reads of a second epoch of part of the data set."""
    part = part_of(layout)
    nbytes = max(int(room_bytes * (part.nbytes / layout.nbytes)), 1)
    gap_bytes = None if layout.encoded else costs.gap_bytes
    most = 0 if layout.encoded else int(layout.chunk_samples.max())
    found = {}
    for unit in (*(1 << power for power in range((max(most, 1) - 1).bit_length())), WHOLE):
        if unit >= most and unit != WHOLE:
            continue
        try:
            found[unit] = steady_feed(part.cut(unit) if unit else part, nbytes, Order(), costs, gap_bytes)
        except UsageError:
            continue
    return found
