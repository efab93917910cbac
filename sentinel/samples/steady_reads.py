"""What an epoch from the second on reads, predicted from part of a data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentinel.samples.epoch_plan import Epoch, epochs_ahead, plan, simulate
from sentinel.samples.exact import stage_exact
from sentinel.samples.feed import Feed
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.source_costs import SourceCosts

STAGED_NS = 10_000
"""Time that a sample takes more where it goes through memory: the reader writes it there, a worker copies it. An
estimate for samples of some 32 KiB, not measured where it is used; counted only where reading alone is compared."""
READ_NS = 100_000
"""Time that a read takes more where it is the reader's: it is placed, and its samples are told apart. As above."""
_ENOUGH = 1 << 14
"""Samples of a data set on which orders and units are tried: what reads a chunk costs hardly depends on the number of
chunks."""
_MOST_RANKS = 8
"""Of that many each has as many samples; of more they share these."""


def staging_ns(feed: Feed) -> float:
    """Time that the samples of an epoch take beside reading, since they go through memory; reading each alone takes
    none of it."""
    return READ_NS * feed.source_reads + STAGED_NS * (feed.samples - feed.direct_reads)


def part_of(layout: Layout, world: int = 1) -> Layout:
    """The data set up to some 16,384 samples a rank, in whole chunks."""
    enough = _ENOUGH * min(world, _MOST_RANKS)
    stop = min(int(np.searchsorted(layout.first_sample[1:], enough)) + 1, layout.n_chunks)
    samples = int(layout.first_sample[stop])
    columns = ("chunk_file", "chunk_offset", "chunk_nbytes", "chunk_samples")
    chunks = {name: getattr(layout, name)[:stop] for name in columns}
    return replace(
        layout, sample_offset=layout.sample_offset[:samples], sample_nbytes=layout.sample_nbytes[:samples], **chunks
    )


def steady_feed(
    layout: Layout, room_bytes: int, order: Order, costs: SourceCosts | None = None, gap_bytes: int | None = None
) -> Feed:
    """The reads of a second epoch of this rank, and with `costs` their time; `gap_bytes` as of `simulate`. Raises
    UsageError for a room too small."""
    chance = np.random.Generator(np.random.PCG64(0))  # any permutation will do
    room = Room.of(layout, room_bytes)
    if order.kind != "exact":
        found = plan(layout, order, room, Epoch(chance.permutation(layout.n_samples)))
        return simulate(layout, found, costs, gap_bytes)
    # of each epoch only what this rank delivers: many ranks look many epochs ahead
    own = [
        np.ascontiguousarray(order.of_rank(chance.permutation(layout.n_samples)))
        for _ in range(2 + epochs_ahead(layout, order, room))
    ]
    first = stage_exact(layout, room, own[0], own[1:-1], None)
    second = stage_exact(layout, room, own[1], own[2:], first)
    return simulate(layout, second, costs, gap_bytes)
