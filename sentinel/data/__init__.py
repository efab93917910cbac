"""Training data in torch's own random order, from your files, through as much memory as you give.

    import sentinel.data

    loader = sentinel.data.loader("train-{000..146}.tar", decode, batch_size=256, memory="20%", workers=8)
    for images, labels in loader:
        ...
    loader.state_dict()         # what training received; load_state_dict() goes on there
    loader.report().headline    # samples, hits, source_reads and more

`Samples` and `OrderSampler` are for a DataLoader of your own; `plan` and `simulate` say what an epoch reads.
docs/data.md lists the orders, what they read, and when none of them is worth it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from sentinel.core.errors import UsageError
from sentinel.core.rules import require
from sentinel.core.units import plain
from sentinel.data.batching import Batching
from sentinel.data.chunk_reader import reads_in_flight
from sentinel.data.data_index import FILES, Paths, RecordFiles, index, open_data, parquet, records, safetensors
from sentinel.data.feed_report import FeedReport
from sentinel.data.feeding import DatasetFeeding, Feeding
from sentinel.data.file_feeding import feeding_of_files
from sentinel.data.forecast import Forecast, forecast
from sentinel.data.importance_loading import Importance, ImportanceLoader, selecting
from sentinel.data.loading import Loader
from sentinel.data.map_style import OrderSampler, Samples
from sentinel.data.peer_feeding import PeerFeeding, cut_for_peers, rooms_within
from sentinel.data.peers import peers_named
from sentinel.data.ranks import world_and_rank
from sentinel.data.room_here import memory_bytes
from sentinel.data.sample_arena import shape_within
from sentinel.data.share_names import path_of
from sentinel.data.source_reads import SourceReads
from sentinel.data.unit_choice import AUTO_UNIT, UNIT, checked_unit
from sentinel.samples import Epoch, Feed, Layout, Order, Room, SourceCosts, Staging, plan, simulate
from sentinel.tiers.arena_place import AUTO, disk_named, place_of

_TORCHS = ("collate_fn", "drop_last", "prefetch_factor", "pin_memory", "multiprocessing_context")
_OPTIONS = (*_TORCHS, "index_path", "unit", "where", "share", "peers", "peers_password_file")
_NAMED = ("transform", "batch_size", "memory", "order", "seed", "workers", "rank", "world")


def loader(
    source: Paths | RecordFiles | Dataset[Any],
    transform: Callable[[Any], Any] | None = None,
    *,
    batch_size: int,
    memory: str | int,
    order: str | Importance = "exact",
    seed: int = 0,
    workers: int = 0,
    rank: int | None = None,
    world: int | None = None,
    **options: Any,
) -> Loader:
    """Batches of a data set. The order of epoch e is `torch.randperm` with a generator of seed + e, split over ranks as
    DistributedSampler does.

    - `source`: `.tar` shards of WebDataset (paths or URLs, `{000..146}`, globs), Parquet, `.npy` or `.safetensors`
      files, a folder of MDS shards, a folder whose files are samples, `parquet(...)`, `safetensors(...)`,
      `records(...)`, or a map-style Dataset, which reads by itself.
    - `transform`: called with each sample: for tar a dict of `__key__` and bytes by extension, for MDS and Parquet a
      dict of columns, for rows and records an array, for a folder (path, bytes).
    - `memory`: for samples that are read ahead: `"20%"` of the data set, `"8GiB"` or bytes. Reserved at once.
    - `order`: `"exact"`, `"windowed"`, `"redirect"`, or `Importance(...)` for an ImportanceLoader, which delivers the
      samples whose last losses were high.
    - `rank`, `world`: default: those of torch.distributed, else 0 of 1.

    Options:

    - `unit`: samples read at once. `"auto"`, the default: in exact order, 1 if all files are in the page cache, else
      the cheapest by measured reads; 64 in other orders and with peers. Parquet's row groups and packed shards are read
      whole.
    - `index_path`: an index made by `index`.
    - `where`: the memory for samples: `"auto"` (default: a slower NUMA node if there is one), `"slow"` (the slowest),
      `"fast"` (tensors then have less of it), `"numa:N"`, or `"file:DIR"`, a file on a disk.
    - `share`: a name. If several jobs of one user on this machine give the same name, and deliver the same epoch in the
      same exact order at about the same time, one reads for all. Jobs that select by loss keep different samples, and
      take from each other's memory what they do not keep.
    - `peers`: the `"host:port"` of `sentinel data serve` on each machine, in the order of ranks, which then share one
      plan and one memory. `peers_password_file`: a file with their password.
    - `collate_fn`, `drop_last` (over ranks too), `prefetch_factor`, `pin_memory`, `multiprocessing_context`: as for
      torch's DataLoader.

    Raises UsageError for a wrong argument or too little memory, CapabilityError for a missing node, FormatError for a
    file that is damaged or changed since it was indexed; nothing is read from such a file.
    """
    _check_options(options)
    seed, workers = plain(seed), plain(workers)
    if options.get("prefetch_factor", 1) is None:  # torch's default
        del options["prefetch_factor"]
    share = options.pop("share", None)
    unit, index_path = checked_unit(options.pop("unit", AUTO_UNIT)), options.pop("index_path", None)
    where = options.pop("where", AUTO)
    disk = disk_named(where)
    peers, password_file = options.pop("peers", ()), options.pop("peers_password_file", None)
    peers = peers.tolist() if isinstance(peers, np.ndarray) else peers
    given, (ranks, own) = rank is not None, world_and_rank(rank, world)
    shares, reads_files = share is not None, isinstance(source, FILES)
    if shares:
        path_of(share)
    importance = order if isinstance(order, Importance) else None
    why_no_peers = (
        "windowed reads each chunk once by itself" if order == "windowed" else f"order={order!r} has no such plan"
    )
    require(
        (
            shares and not (reads_files and (order == "exact" or importance is not None)),
            f"share={share!r} needs files in exact order, or selected by loss",
            'give order="exact" or Importance(), or leave share= out',
        ),
        (
            importance is not None and not reads_files,
            f"order={importance!r} needs files, a Dataset reads by itself",
            'give files, or order="exact"',
        ),
        (
            peers and order != "exact",
            f"peers= is for exact order: {why_no_peers}",
            'give order="exact", or no peers',
        ),
        (peers and not reads_files, "peers= needs files, a Dataset reads by itself", "give files, or no peers"),
        (peers and shares, f"peers= and share={share!r} are two ways to read once", "give one of them"),
        (
            peers and where != AUTO,
            f"peers= with where={where!r}: samples lie in the servers' memory",
            "leave where= out",
        ),
        (
            shares and disk is not None,
            f"share={share!r} with where={where!r}: a file is for one job",
            "give one of them",
        ),
        (
            isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 62,
            f"seed={seed!r} is no seed",
            "give a number of at least 0",
        ),
    )
    order = "exact" if isinstance(order, Importance) else order
    batching = Batching(batch_size, workers, transform, **options)
    asked = Order(order, seed, ranks, own, bool(batching.drop_last))
    require(
        (
            isinstance(source, IterableDataset) or not _indexable(source),
            f"a {type(source).__name__} cannot be indexed: it has no length, or no item i",
            "give a list of files, or a Dataset with __len__ and __getitem__",
        ),
        (
            order != "exact" and not reads_files,
            f"order={order!r} needs chunks, a Dataset has none",
            'give files, or order="exact"',
        ),
    )
    feeding: Feeding
    if not isinstance(source, FILES):
        feeding, unit = DatasetFeeding(cast("Dataset[Any]", source)), 0
    else:
        data = open_data(source, index_path)
        nbytes = memory_bytes(memory, data.layout, disk)
        if peers:
            rooms = rooms_within(nbytes, data.layout, ranks)
            layout, unit = cut_for_peers(data.layout, rooms[1], UNIT if isinstance(unit, str) else unit)
            servers = peers_named(peers, ranks, password_file)
            feeding = PeerFeeding(data, layout, rooms, asked, servers, reads_in_flight(workers))
            return Loader(feeding, asked, batching, unit, given)
        if importance is not None:
            shape = shape_within(nbytes, data.layout.sample_nbytes, worth=share is not None)
            place = place_of(where, shape.nbytes, lambda: SourceReads(data).costs.read_bytes_per_s)
            fixed = unit if not isinstance(unit, str) else UNIT if share is None else 1
            return selecting(data, shape, importance, asked, batching, fixed, place, given, share)
        feeding, unit = feeding_of_files(data, memory, asked, workers=workers, unit=unit, where=where, share=share)
    return Loader(feeding, asked, batching, unit, given)


def _indexable(source: object) -> bool:
    return isinstance(source, RecordFiles | str | os.PathLike) or (
        not isinstance(source, bytes) and hasattr(source, "__len__") and hasattr(source, "__getitem__")
    )


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, (*_OPTIONS, *_NAMED), 1)
            said = f"did you mean {near[0]}?" if near else f"the options are {', '.join(_OPTIONS)}"
            raise UsageError(f"there is no option {name!r}", said)


__all__ = [
    "Epoch",
    "Feed",
    "FeedReport",
    "Forecast",
    "Importance",
    "ImportanceLoader",
    "Layout",
    "Loader",
    "Order",
    "OrderSampler",
    "RecordFiles",
    "Room",
    "Samples",
    "SourceCosts",
    "Staging",
    "forecast",
    "index",
    "loader",
    "parquet",
    "plan",
    "records",
    "safetensors",
    "simulate",
]
