"""docs/data-orders.md from docs/data-orders.json: what each order of training data reads.

python -m benchmarks.data_orders > docs/data-orders.json && python -m benchmarks.data_orders_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._page_parts import table

DOCS = Path(__file__).resolve().parents[1] / "docs"
Told = Mapping[str, Any]

_HEAD = """# Orders of training data, and what they read

`sentinel/samples` plans an epoch before it begins: which chunk of the files is read when, and which of its samples stay
in memory until when. Three orders:

- **exact**: torch's own order for the seed (RandomSampler, DistributedSampler), bit for bit. A sample that is not in
  memory reads its chunk; of the chunk stays what is used within a window of the next samples, in this epoch or the
  next. Nothing that stays is evicted. A window ends where a read and its memory cost least for each position, and the
  memory is never exceeded.
- **windowed**: each chunk is read once, and its samples are spread over as many positions as the memory allows.
- **redirect**: MemHub's (Redox, arXiv 2505.16280): a request takes any sample that lies at its place in memory, of a
  group of as many chunks as the data are larger than the memory. Seeded, without a clock.

Every order delivers each sample once an epoch over all ranks, if these divide their number. Memory (`r`) is a share of
the data set; a chunk has C samples. Counts are made by the planner, from sizes and permutations; nothing is read for
them."""


def page(told: Told) -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, "", *_made(told), *_rows(told), *_large(told), *_ranks(told), *_units(told)]) + "\n"


def _made(told: Told) -> Iterator[str]:
    settings, versions = told["settings"], told["versions"]
    commit = f", commit {told['commit']}" if "commit" in told else ""
    yield (
        f"`python -m benchmarks.data_orders`, {told['when'][:10]}{commit}, {told['machine']['cores']} cores, Python"
        f" {versions['python']}, numpy {versions['numpy']}, torch {versions['torch']}. {settings['samples']:,} samples"
        f" of lognormal sizes, mean {settings['mean_bytes'] >> 10} KiB, σ {settings['sigma']}; seed 0.\n"
    )


def _rows(told: Told) -> Iterator[str]:
    rows = told["results"]["rows"]
    yield "## Reads a chunk\n"
    yield "The first epoch begins with empty memory; of the next three the largest count is shown. `mixed`: distinct"
    yield f"chunks in a batch of {told['settings']['batch']}; `span`: how much of the epoch lies between the first"
    yield "and the last sample of a chunk. `memory`: most in use, of what was given.\n"
    yield from table(
        ("C", "r", "order", "first epoch", "next epochs", "bytes read / data", "mixed", "span", "memory"),
        [
            (
                str(row["chunk"]),
                f"{row['share']:.2f}",
                row["order"],
                f"{row['first']:.2f}",
                f"{max(row['steady']):.2f}",
                f"{row['bytes']:.2f}",
                f"{row['chunks_per_batch']:.0f}",
                f"{row['span']:.2f}",
                f"{row['peak_share']:.1%}",
            )
            for row in rows
        ],
    )
    less = [
        f"{row['share']:.2f}"
        for row in rows
        if row["order"] == "redirect" and row["chunk"] == 64 and max(row["steady"]) < _exact(rows, row)
    ]
    direct = sum(row["direct_reads"] for row in rows)
    yield f"\nRedirect reads less than exact order at C=64 for r of {', '.join(less) or 'none of these'}."
    yield f"Samples read past the memory for want of room: {direct}.\n"


def _exact(rows: Sequence[Told], like: Told) -> float:
    """Steady reads of exact order in the same room."""
    return next(
        max(row["steady"])
        for row in rows
        if row["order"] == "exact" and (row["chunk"], row["share"]) == (like["chunk"], like["share"])
    )


def _large(told: Told) -> Iterator[str]:
    if not told["results"]["large"]:
        return
    first = told["results"]["large"][0]
    yield f"## Planning {first['samples']:,} samples\n"
    yield f"C={first['chunk']}, r={first['share']}; processor time of each of three epochs, permutations given.\n"
    yield from table(
        ("order", "reads a chunk", "seconds of a processor"),
        [
            (
                row["order"],
                ", ".join(f"{reads:.2f}" for reads in row["reads"]),
                ", ".join(f"{seconds:.2f}" for seconds in row["plan_cpu_s"]),
            )
            for row in told["results"]["large"]
        ],
    )
    yield ""


def _ranks(told: Told) -> Iterator[str]:
    yield "## Several ranks\n"
    yield "Exact order, C=64, r=0.2 each, reads a chunk of all ranks in the third epoch: each rank planning for itself,"
    yield "and one plan over the memory of all.\n"
    yield from table(
        ("ranks", "each for itself", "one plan"),
        [(str(row["world"]), f"{row['apart']:.2f}", f"{row['together']:.2f}") for row in told["results"]["ranks"]],
    )
    yield ""


def _units(told: Told) -> Iterator[str]:
    yield "## The unit of reading\n"
    yield "Exact order, C=64, r=0.2: µs of reading a sample, predicted, if chunks have so many samples, or all"
    yield "64. What stays of a chunk is read, and gaps that take no longer than another read. The cheapest is taken."
    yield "Of reads in flight the latencies overlap, the bytes do not.\n"
    names = list(told["results"]["units"][0]["ns_a_sample"])
    yield from table(
        ("source", *names, "taken"),
        [
            (
                f"{row['latency_ns'] / 1e6:g} ms, {row['read_bytes_per_s'] / 1e9:g} GB/s, {row['in_flight']} in flight",
                *(f"{row['ns_a_sample'][name] / 1e3:.0f}" for name in names),
                row["chosen"],
            )
            for row in told["results"]["units"]
        ],
    )


if __name__ == "__main__":
    (DOCS / "data-orders.md").write_text(page(json.loads((DOCS / "data-orders.json").read_text())))
