"""The table of docs/data.md, from docs/data.json: loaders of training data side by side.

python -m benchmarks.data > docs/data.json && python -m benchmarks.data_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._bench import paired
from benchmarks.data import PLAIN

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- beside other loaders: made by `python -m benchmarks.data_page` -->"
END = "<!-- end of beside other loaders -->"
Told = Mapping[str, Any]
_HEADS = (
    "loader",
    "samples/s",
    "times random access",
    "reads a chunk: first epoch, next",
    "bytes read / data",
    "chunks a batch",
    "span",
    "delivered, distinct",
)


def rewritten(page: str, told: Told) -> str:
    """The page's text with the tables of `told`; ValueError without its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {END if begin else BEGIN}")
    return "\n".join([f"{before}{BEGIN}", "", *_made(told), *_tables(told), f"{END}{after}"])


def _made(told: Told) -> Iterator[str]:
    settings, versions, machine = told["settings"], told["versions"], told["machine"]
    yield (
        f"`python -m benchmarks.data`, {told['when'][:10]}, {machine['cores']} cores ({machine['cpu']}), kernel"
        f" {machine['kernel']}, Python {versions['python']}, torch {versions['torch']}. {settings['samples']:,} samples"
        f" of lognormal sizes, mean {(settings['mean_bytes'] >> 10) + 8} KiB, in shards of {settings['chunk']}; room"
        f" for {settings['share']:.0%} of them; batches of {settings['batch']}; a first epoch, then"
        f" {settings['rounds']} rounds in which all take turns."
    )
    yield ""


def _tables(told: Told) -> Iterator[str]:
    chunks = told["settings"]["samples"] / told["settings"]["chunk"]
    for result in told["results"]:
        source, rivals = result["source"], result["rivals"]
        yield f"### {source['name'][0].upper()}{source['name'][1:]}, {source['workers']} workers"
        yield ""
        yield f"| {' | '.join(_HEADS)} |"
        yield f"| {' | '.join('---' for _ in _HEADS)} |"
        measured = {name: rival for name, rival in rivals.items() if rival.get("rounds") and len(rival) == 3}
        data = measured.get(PLAIN, {}).get("rounds", [{}])[0].get("read_bytes")
        for name, rival in measured.items():
            yield _row(name, rival, measured, chunks, data)
        yield ""
        for name, rival in rivals.items():
            if name not in measured:
                yield f"Not measured: {name} ({rival.get('not_measured', 'no round')})."
                yield ""


def _row(name: str, rival: Told, measured: Mapping[str, Told], chunks: float, data: float | None) -> str:
    rounds, first = rival["rounds"], rival["first"]
    last = rounds[-1]
    speed = median(epoch["samples"] / epoch["ns"] * 1e9 for epoch in rounds)
    ratio = "-"
    if PLAIN in measured:
        pairs = zip(rounds, measured[PLAIN]["rounds"], strict=True)
        speeds = [{a: one["samples"] / one["ns"] for a, one in (("mine", m), ("plain", p))} for m, p in pairs]
        found = paired(speeds, "mine", "plain")
        ratio = f"{found['median']:.2f} ({found['least']:.2f}–{found['most']:.2f})"
    version = f" {rival['version']}" if rival.get("version") else ""
    of_data = f"{last['read_bytes'] / data:.2f}" if data else "-"
    cells = (
        f"{name}{version}",
        f"{speed:,.0f}",
        ratio,
        f"{first['reads'] / chunks:.2f}, {median(epoch['reads'] for epoch in rounds) / chunks:.2f}",
        of_data,
        f"{last['chunks_per_batch']:.0f}",
        f"{last['span']:.2f}",
        f"{last['samples']:,}, {last['distinct']:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    page = DOCS / "data.md"
    page.write_text(rewritten(page.read_text(), json.loads((DOCS / "data.json").read_text())))
