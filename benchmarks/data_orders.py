"""What each order of training data reads, counted by the planner: `python -m benchmarks.data_orders >
docs/data-orders.json`.

Counts depend on sizes, permutations and the room only, and are the same on every machine; nothing is read. Samples have
lognormal sizes (mean 32 KiB). A row is a chunk of C samples, an order and a room as a share of the data set: reads a
chunk in the first epoch and in each of the next three, bytes read over bytes of the data set, how well a batch of 256
is mixed, and most memory in use over the room. Times are processor times of planning. `python -m
benchmarks.data_orders_page` writes docs/data-orders.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench
from sentinel.samples import (
    Epoch,
    Layout,
    Order,
    Room,
    SourceCosts,
    best_unit,
    epochs_ahead,
    plan,
    shuffle_quality,
    simulate,
    unit_costs,
)

MEAN_BYTES, SIGMA = 32 << 10, 0.5
EPOCHS = 4
BATCH = 256
ROWS = (
    *((64, share, "exact") for share in (0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8)),
    *((64, share, "redirect") for share in (0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8)),
    *((64, share, "windowed") for share in (0.05, 0.2, 0.5)),
    *((16, share, kind) for kind in ("exact", "redirect") for share in (0.05, 0.1, 0.2)),
    *((size, 0.2, "exact") for size in (4, 8, 32, 256)),
)
UNITS = (SourceCosts(2e6, 1e9), SourceCosts(2e6, 1e9, 16), SourceCosts(100e3, 500e6), SourceCosts(100e3, 500e6, 16))
LARGE = (1_281_152, 64, 0.2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=65_536, help="of the data set of the table")
    parser.add_argument("--large", type=int, default=LARGE[0], help="of the data set whose planning is timed; 0: none")
    given = parser.parse_args(arguments)
    rows = [row(given.samples, *what) for what in ROWS]
    results = {
        "rows": rows,
        "large": [large(given.large, kind) for kind in ("exact", "windowed", "redirect")] if given.large else [],
        "units": [units(given.samples, costs) for costs in UNITS],
        "ranks": [ranks(given.samples, world) for world in (2, 3)],
    }
    settings = {"samples": given.samples, "mean_bytes": MEAN_BYTES, "sigma": SIGMA, "batch": BATCH, "epochs": EPOCHS}
    print(json.dumps(_bench.told("exact order reads a chunk few times", {"settings": settings}, results)))


def layout_of(n: int, chunk: int, mean_bytes: int = MEAN_BYTES) -> Layout:
    """`n` samples of lognormal sizes in chunks of `chunk`, one after the other in one file."""
    sizes = np.random.default_rng(1).lognormal(np.log(mean_bytes) - SIGMA**2 / 2, SIGMA, n).astype(np.int64) + 1
    ends = sizes.cumsum()
    first = np.arange(0, n, chunk)
    begins = np.concatenate([[0], ends])[first]
    counts = np.diff(first, append=n)
    return Layout(
        "sizes",
        ("sizes",),
        ends[-1:],
        np.zeros(1, np.int64),
        np.zeros(len(first), np.int32),
        begins,
        np.diff(begins, append=ends[-1]),
        counts.astype(np.int32),
        ends - sizes - np.repeat(begins, counts),
        sizes,
    )


def permutation(n: int, epoch: int) -> Any:
    """torch's for seed 0."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).numpy()


def row(n: int, chunk: int, share: float, kind: str) -> dict[str, Any]:
    """Counts of `EPOCHS` epochs of one order in one room."""
    layout = layout_of(n, chunk)
    room, before = Room.of(layout, int(layout.nbytes * share)), None
    feeds = []
    for epoch in range(EPOCHS):
        known = Epoch(permutation(n, epoch), permutation(n, epoch + 1))
        before = plan(layout, Order(kind), room, known, before)
        feeds.append(simulate(layout, before))
    assert before is not None
    quality = shuffle_quality(layout, before.order, BATCH)
    return {
        "chunk": chunk,
        "share": share,
        "order": kind,
        "first": feeds[0].reads_per_chunk,
        "steady": [feed.reads_per_chunk for feed in feeds[1:]],
        "bytes": feeds[-1].source_bytes / layout.nbytes,
        "direct_reads": sum(feed.direct_reads for feed in feeds),
        "peak_share": max(feed.peak_bytes for feed in feeds) / room.nbytes,
        "chunks_per_batch": quality.chunks_per_batch,
        "span": quality.span,
    }


def large(n: int, kind: str) -> dict[str, Any]:
    """Processor time of planning each of three epochs of many samples, and what they read."""
    _, chunk, share = LARGE
    layout = layout_of(n, chunk)
    room, before = Room.of(layout, int(layout.nbytes * share)), None
    permutations = [permutation(n, epoch) for epoch in range(4)]
    spent, reads = [], []
    for now, following in pairwise(permutations):
        began = time.process_time()
        before = plan(layout, Order(kind), room, Epoch(now, following), before)
        spent.append(time.process_time() - began)
        reads.append(simulate(layout, before).reads_per_chunk)
    return {"samples": n, "chunk": chunk, "share": share, "order": kind, "plan_cpu_s": spent, "reads": reads}


def units(n: int, costs: SourceCosts) -> dict[str, Any]:
    """Predicted time of reading a sample in exact order by the unit of reading, C=64 and r=.2, and the one chosen."""
    layout = layout_of(n, 64)
    room_bytes = layout.nbytes // 5
    found = unit_costs(layout, room_bytes, costs)
    return {
        "latency_ns": costs.latency_ns,
        "read_bytes_per_s": costs.read_bytes_per_s,
        "in_flight": costs.in_flight,
        "ns_a_sample": {str(unit or "chunk"): ns for unit, ns in found.items()},
        "chosen": str(best_unit(layout, room_bytes, costs) or "chunk"),
    }


def ranks(n: int, world: int) -> dict[str, Any]:
    """Reads a chunk of several ranks with r=.2 each: each for itself, and one plan over their rooms together."""
    layout = layout_of(n, 64)
    nbytes = layout.nbytes // 5
    told = {}
    for name, orders, room in (
        ("apart", [Order(world=world, rank=rank) for rank in range(world)], Room.of(layout, nbytes)),
        ("together", [Order()], Room.of(layout, nbytes * world)),
    ):
        reads = 0.0
        for order in orders:
            before = None
            ahead = epochs_ahead(layout, order, room)
            for epoch in range(3):
                now, following, *later = (permutation(n, number) for number in range(epoch, epoch + ahead + 1))
                before = plan(layout, order, room, Epoch(now, following, later=tuple(later)), before)
            assert before is not None
            reads += simulate(layout, before).reads_per_chunk
        told[name] = reads
    return {"world": world, **told}


if __name__ == "__main__":
    main()
