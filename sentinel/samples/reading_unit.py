"""The unit of reading: a whole chunk or part of it, by what a source's reads cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.samples.epoch_plan import Epoch, plan, simulate
from sentinel.samples.feed import Feed
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.source_costs import SourceCosts

WHOLE = 0
"""The unit that is a whole chunk."""
ALONE = -1
"""No unit: each sample is read alone, when it is needed."""
STAGED_NS = 10_000
"""Time that a sample takes more where it goes through memory: the reader writes it there, a worker copies it. An
estimate for samples of some 32 KiB, not measured where it is used; counted only where reading alone is compared."""
READ_NS = 100_000
"""Time that a read takes more where it is the reader's: it is placed, and its samples are told apart. As above."""
_ENOUGH = 1 << 14
"""Samples of a data set on which units are tried: what reads a chunk costs hardly depends on the number of chunks."""


def unit_costs(layout: Layout, room_bytes: int, costs: SourceCosts, read_ns: int = 0) -> dict[int, float]:
    """Samples that are read at once (powers of two below those of the largest chunk, then WHOLE) -> ns of reading a
    sample in exact order from the second epoch on, predicted from part of the data set. Units for which the room is too
    little are left out; where chunks are encoded there is WHOLE only. `read_ns`: what a read takes besides."""
    part = _part(layout)
    nbytes = max(int(room_bytes * (part.nbytes / layout.nbytes)), 1)
    most = 0 if layout.encoded else int(layout.chunk_samples.max())
    found = {}
    for unit in (*(1 << power for power in range((max(most, 1) - 1).bit_length())), WHOLE):
        if unit >= most and unit != WHOLE:
            continue
        try:
            feed = _steady(part.cut(unit) if unit else part, nbytes, costs)
        except UsageError:
            continue
        found[unit] = (feed.wait_ns + read_ns * feed.source_reads) / part.n_samples
    return found


def best_unit(layout: Layout, room_bytes: int, costs: SourceCosts, alone: SourceCosts | None = None) -> int:
    """The unit that costs least, for `layout.cut`, or WHOLE; ALONE where that costs no more. `costs`: what the reader
    sees; `alone`: what workers see that read each sample alone, None if they are not to. Raises UsageError for a room
    too small for any."""
    found = unit_costs(layout, room_bytes, costs, 0 if alone is None else READ_NS)
    if not found:
        raise UsageError(f"memory of {room_bytes} bytes is too little for any unit of reading", "give more memory")
    if alone is not None:
        found = {unit: ns + STAGED_NS for unit, ns in found.items()}
        found[ALONE] = alone.ns(layout.n_samples, layout.nbytes) / layout.n_samples
    return min(found, key=lambda unit: found[unit])


def _part(layout: Layout) -> Layout:
    """The data set up to about _ENOUGH samples, in whole chunks."""
    stop = min(int(np.searchsorted(layout.first_sample[1:], _ENOUGH)) + 1, layout.n_chunks)
    samples = int(layout.first_sample[stop])
    columns = ("chunk_file", "chunk_offset", "chunk_nbytes", "chunk_samples")
    chunks = {name: getattr(layout, name)[:stop] for name in columns}
    return replace(
        layout, sample_offset=layout.sample_offset[:samples], sample_nbytes=layout.sample_nbytes[:samples], **chunks
    )


def _steady(layout: Layout, room_bytes: int, costs: SourceCosts) -> Feed:
    """The reads of a second epoch, and their time."""
    chance = np.random.Generator(np.random.PCG64(0))  # any permutation will do
    orders = [chance.permutation(layout.n_samples) for _ in range(3)]
    room, order = Room.of(layout, room_bytes), Order()
    first = plan(layout, order, room, Epoch(orders[0], orders[1]))
    second = plan(layout, order, room, Epoch(orders[1], orders[2]), first)
    return simulate(layout, second, costs)
