"""`sentinel data`: training data in a memory that one names: index, what each order reads, a trial, a server."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    OK,
    add_json,
    add_verb,
    amount,
    check_outputs,
    print_json,
    print_table,
    size,
    whole_number,
)
from sentinel.core.errors import UsageError
from sentinel.core.units import counted, format_bytes, format_ns, parse_bytes
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.data import Forecast, RecordFiles

_EXAMPLES = """\
examples:
  sentinel data plan 'train-{000..146}.tar' --memory 5%,20%,50%
      what each order would read, and whether it is worth it; reads little, trains nothing
  sentinel data run 'train-{000..146}.tar' --memory 20% --workers 4
      delivers epochs without training, and prints what was read
  sentinel data run 'train-{000..146}.tar' --memory 20% --where numa:1
      with the memory on NUMA node 1; prints how many pages are on each node
  sentinel data index photos/ --beside
      keeps the index in the folder of the data, not in your cache, where first use would put it
  sentinel data plan tokens.bin --record uint16:1025
  sentinel data pack photos/ --to shards/
      writes tar shards, shuffled once: for folders of small files, and for sources that no order reads well
  sentinel data serve --memory 8GiB --address 10.0.0.1 --password-file secret
      holds samples for the ranks of a job on several machines: loader(..., peers=("10.0.0.1:6379", ...))
  sentinel data serve --memory 8GiB --where numa:1
      in the memory of NUMA node 1, as long as that has room

SOURCE is .tar shards in WebDataset's form, .parquet, .npy or .safetensors files, a folder of MDS shards with its
index.json, a folder whose files are samples, or with --record, files without a header. Give paths or URLs such as
s3://bucket/a.tar. Sources are only read.
"""


_UNITS = {0: "whole", -1: "alone"}
"""What the loader reads at once where that is not a number of samples."""


def _at_least_0(text: str) -> int:
    """An argparse type."""
    return whole_number(text, 0)


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    parser = add_verb(verbs, "data", "index training data, and show what reading it in random order costs", _EXAMPLES)
    inner = parser.add_subparsers(metavar="VERB", dest="data_verb", required=True, title="verbs")
    made = add_verb(inner, "index", "find where the samples lie, and write the index", "")
    _add_source(made)
    made.add_argument("-o", "--output", metavar="FILE", help="write the index to this file")
    made.add_argument("--beside", action="store_true", help="write it into the folder of the data")
    made.set_defaults(execute=execute_index)
    told = add_verb(inner, "plan", "show what each order would read, before any training", "")
    _add_source(told)
    told.add_argument(
        "--memory",
        type=_amounts,
        default=["5%", "20%", "50%"],
        metavar="AMOUNTS",
        help="memory for samples, each in a column: sizes, or shares of the data (default 5%%,20%%,50%%)",
    )
    _add_where(told)
    told.add_argument(
        "--workers",
        type=_at_least_0,
        default=1,
        metavar="N",
        help="workers of a plain DataLoader, each with one read in flight (default 1)",
    )
    _add_batches(told)
    told.set_defaults(execute=execute_plan)
    tried = add_verb(inner, "run", "deliver epochs without training, and show what was read", "")
    _add_source(tried)
    tried.add_argument(
        "--memory",
        type=amount,
        default="20%",
        metavar="AMOUNT",
        help="memory for samples: a size, or a share of the data (default 20%%)",
    )
    tried.add_argument("--order", default="exact", help="exact (default), windowed or redirect")
    tried.add_argument("--epochs", type=whole_number, default=2, metavar="N", help="how many to deliver (default 2)")
    tried.add_argument(
        "--workers", type=_at_least_0, default=0, metavar="N", help="processes that fetch samples (default 0: none)"
    )
    tried.add_argument("--seed", type=_at_least_0, default=0, metavar="N", help="of the random order (default 0)")
    _add_where(tried)
    tried.add_argument(
        "--share", metavar="NAME", help="share memory with other runs of this name: one of them reads for all"
    )
    _add_batches(tried)
    tried.set_defaults(execute=execute_run)
    packed = add_verb(inner, "pack", "write tar shards of the samples, shuffled once", "")
    _add_source(packed)
    packed.add_argument("--to", metavar="DIR", required=True, help="a new folder; it appears when all is written")
    packed.add_argument(
        "--seed", type=_at_least_0, default=0, metavar="N", help="of the order in which they are shuffled (default 0)"
    )
    packed.add_argument("--shard", type=size, default="256MiB", metavar="SIZE", help="size of a shard (default 256MiB)")
    packed.add_argument(
        "--memory",
        type=amount,
        default="20%",
        metavar="AMOUNT",
        help="memory for reading ahead: a size, or a share of the data (default 20%%)",
    )
    packed.set_defaults(execute=execute_pack)
    removed = add_verb(inner, "rm", "remove the name of a share", "")
    removed.add_argument("share", metavar="NAME", help="the name given as share=")
    removed.add_argument("--force", action="store_true", help="even if jobs use it; they go on")
    removed.set_defaults(execute=execute_rm)
    served = add_verb(inner, "serve", "hold samples in memory for ranks on several machines, until Ctrl-C", "")
    served.add_argument("--memory", type=size, required=True, metavar="SIZE", help="upper limit of that memory")
    served.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="HOST",
        help="address of this machine to listen on (default 127.0.0.1)",
    )
    served.add_argument("--port", type=whole_number, default=6379, metavar="N", help="to listen on (default 6379)")
    served.add_argument(
        "--password-file",
        metavar="FILE",
        help="its first line is the password; required unless the address is loopback",
    )
    served.add_argument(
        "--where",
        default="auto",
        metavar="WORD",
        help="where the memory is: auto (default: the slowest node with room if there is one), slow, fast or numa:N",
    )
    served.set_defaults(execute=execute_serve)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", nargs="+", help="files, a pattern such as 'a-{000..146}.tar', a folder"
    )
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--record", metavar="DTYPE:SHAPE", help="records without a header, such as uint16:1025")
    said.add_argument("--columns", metavar="NAMES", help="Parquet: columns to read, such as a,b (default all)")
    said.add_argument("--tensor", metavar="NAME", help="safetensors: the tensor whose rows are samples")
    add_json(parser)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        default="auto",
        metavar="WORD",
        help="where the memory is: auto (default: a slower node if there is one), slow, fast, numa:N or file:DIR",
    )


def _add_batches(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-size", type=whole_number, default=256, metavar="SAMPLES", help="samples in a batch (default 256)"
    )
    parser.add_argument(
        "--unit",
        type=_unit,
        default="auto",
        metavar="SAMPLES",
        help="samples to read at once, or auto (default: in exact order what is cheapest here, else 64)",
    )


def execute_index(arguments: argparse.Namespace) -> int:
    """Index, keep it, and print where."""
    from sentinel import data, files

    if arguments.beside and arguments.output:
        raise UsageError("--beside and --output name two places", "give one of them")
    check_outputs(arguments.output)
    path = data.index(_source(arguments), arguments.output, beside=arguments.beside)
    layout = files.load(path)
    assert isinstance(layout, data.Layout)
    found: dict[str, Any] = {
        "index": str(path),
        "format": layout.format,
        "files": len(layout.files),
        "samples": layout.n_samples,
        "sample_bytes": layout.nbytes,
    }
    if arguments.json:
        print_json(found)
    else:
        print_table([(name, format_bytes(value) if "bytes" in name else str(value)) for name, value in found.items()])
    return OK


def execute_plan(arguments: argparse.Namespace) -> int:
    """Predict, and print a row for each order and memory."""
    from sentinel import data

    told = data.forecast(
        _source(arguments),
        arguments.memory,
        batch_size=arguments.batch_size,
        unit=arguments.unit,
        workers=arguments.workers,
        where=arguments.where,
    )
    if arguments.json:
        print_json(forecast_json(told))
        return OK
    costs = told.costs
    print(
        f"{told.layout.n_samples:,} samples, {format_bytes(told.layout.nbytes)}, {len(told.layout.files)} files;"
        f" a read here takes {format_ns(costs.latency_ns)} and {format_bytes(costs.read_bytes_per_s)}/s,"
        f" {costs.in_flight:.1f} at once (measured)\n"
    )
    rows = [
        (
            *("order", "memory", "unit", "reads a chunk", "first epoch", "bytes"),
            *("an epoch takes", "speed", "chunks a batch", "span"),
        )
    ]
    for row in told.rows:
        rows.append(
            (
                row.order,
                row.memory,
                _UNITS.get(row.unit, str(row.unit)),
                f"{row.later_epochs.reads_per_chunk:.2f}",
                f"{row.first_epoch.reads_per_chunk:.2f}",
                f"{row.later_epochs.source_bytes / max(row.later_epochs.sample_bytes, 1):.2f} ×",
                format_ns(row.epoch_ns),
                f"{row.speedup:.2f} ×",
                f"{row.chunks_per_batch:.0f}",
                f"{row.span:.2f}",
            )
        )
    print_table(rows)
    print(f"\n{told.verdict}")
    for note in told.notes:
        print(f"note: {note}")
    return OK


def forecast_json(told: Forecast) -> dict[str, Any]:
    """Everything that was predicted."""
    return {
        "samples": told.layout.n_samples,
        "sample_bytes": told.layout.nbytes,
        "files": len(told.layout.files),
        "costs": asdict(told.costs),
        "cached": told.cached,
        "rows": [
            {
                "order": row.order,
                "memory": row.memory,
                "memory_bytes": row.memory_bytes,
                "unit": row.unit,
                "reads_per_chunk": row.later_epochs.reads_per_chunk,
                "first_epoch_reads_per_chunk": row.first_epoch.reads_per_chunk,
                "source_ranges": row.later_epochs.source_ranges,
                "source_bytes": row.later_epochs.source_bytes,
                "epoch_ns_predicted": row.epoch_ns,
                "speedup_predicted": row.speedup,
                "chunks_per_batch": row.chunks_per_batch,
                "span": row.span,
                "worth_it": row.worth_it,
            }
            for row in told.rows
        ],
        "verdict": told.verdict,
        "notes": list(told.notes),
    }


def execute_run(arguments: argparse.Namespace) -> int:
    """Deliver epochs, and print the loader's report."""
    from sentinel import data

    loader = data.loader(
        _source(arguments),
        batch_size=arguments.batch_size,
        memory=arguments.memory,
        order=arguments.order,
        seed=arguments.seed,
        workers=arguments.workers,
        rank=0,
        world=1,
        unit=arguments.unit,
        collate_fn=_as_it_is,
        share=arguments.share,
        where=arguments.where,
    )
    began = time.monotonic()
    for _ in range(arguments.epochs):
        for _ in loader:
            pass
    seconds = time.monotonic() - began
    report = loader.report()
    loader.close()
    if arguments.json:
        nodes = {str(node): pages for node, pages in report.node_pages.items()}
        mixing = None if report.mixing is None else asdict(report.mixing)
        told = {"epochs": arguments.epochs, "seconds": seconds, "node_pages": nodes, "caveats": report.caveats}
        told |= {"mixing": mixing, "hits_by_tier": report.hits_by_tier}
        print_json({**report.headline, **told})
    else:
        print(report.text())
        print(
            f"{report.feed.samples / max(seconds, 1e-9):,.0f} samples/s over {arguments.epochs} epochs,"
            " planning included"
        )
    return OK


def execute_pack(arguments: argparse.Namespace) -> int:
    """Pack, and print what was written."""
    from sentinel import need_torch

    need_torch("reading training data")
    from sentinel.data.shard_packing import pack

    done = pack(_source(arguments), arguments.to, seed=arguments.seed, shard=arguments.shard, memory=arguments.memory)
    if arguments.json:
        print_json(asdict(done))
    else:
        what = f"{counted(done.samples, 'sample')} in {counted(done.shards, 'shard')}"
        print(f"{what}, {format_bytes(done.nbytes)}: {done.pattern}")
    return OK


def execute_rm(arguments: argparse.Namespace) -> int:
    """Take the name away."""
    from sentinel import need_torch

    need_torch("reading training data")
    from sentinel.data.share_names import remove

    remove(arguments.share, force=arguments.force)
    return OK


def execute_serve(arguments: argparse.Namespace) -> int:
    """Become valkey-server or redis-server. Does not return but by an error."""
    from sentinel.system import peer_server
    from sentinel.tiers.arena_place import disk_named, place_of

    server = peer_server.program()
    secret = None if arguments.password_file is None else peer_server.password_in(arguments.password_file)
    nbytes = parse_bytes(arguments.memory)
    if disk_named(arguments.where) is not None:
        raise UsageError(
            f"--where {arguments.where}: a server holds samples in memory", "give auto, slow, fast or numa:N"
        )
    place = place_of(arguments.where, nbytes, None)
    configured = peer_server.configuration(nbytes, arguments.address, arguments.port, secret)
    say(f"{server} holds up to {format_bytes(nbytes)} at {arguments.address}:{arguments.port}, until Ctrl-C")
    if place.why:
        say(place.why)
    peer_server.serve(server, configured, place.node)
    return OK


def _as_it_is(samples: list[Any]) -> int:
    """Samples of unlike forms make no batch: only their number goes to the main process."""
    return len(samples)


def _source(arguments: argparse.Namespace) -> list[str] | RecordFiles:
    found: list[str] = arguments.source
    from sentinel import data

    if arguments.columns is not None:
        return data.parquet(found, [name.strip() for name in arguments.columns.split(",")])
    if arguments.tensor is not None:
        return data.safetensors(found, arguments.tensor)
    if arguments.record is None:
        return found
    dtype, _, shape = arguments.record.partition(":")
    sizes = shape.split("x")
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise UsageError(f"--record {arguments.record} names no shape", "write --record uint16:1025")
    try:
        return data.records(arguments.source, dtype, tuple(map(int, sizes)))
    except UsageError as error:
        raise UsageError(error.what, "write --record uint16:1025") from None


def _amounts(text: str) -> list[str]:
    """An argparse type: amounts of memory, separated by commas."""
    return [amount(word) for word in text.split(",")]


def _unit(text: str) -> int | str:
    """An argparse type: a number of samples of at least 1, or `auto`."""
    return text if text == "auto" else whole_number(text)
