"""The tables of docs/data.md: loaders of training data side by side, from docs/data.json, and ranks with and without
peers, from docs/three-ranks.json.

python -m benchmarks.data > docs/data.json; python -m benchmarks.three_ranks > docs/three-ranks.json
python -m benchmarks.data_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._bench import paired
from benchmarks.data import PLAIN

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- beside other loaders: made by `python -m benchmarks.data_page` -->"
END = "<!-- end of beside other loaders -->"
RANKS_BEGIN = "<!-- ranks with peers: made by `python -m benchmarks.data_page` -->"
RANKS_END = "<!-- end of ranks with peers -->"
Told = Mapping[str, Any]
_BATCHES = "2026-11-23T18:00"
"""When workers began to take whole batches from servers."""
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


def rewritten(page: str, loaders: Told, ranks: Told) -> str:
    """The page's text with the tables of both; ValueError without their marks."""
    page = between(page, BEGIN, END, [*_made(loaders), *_tables(loaders)])
    return between(page, RANKS_BEGIN, RANKS_END, _ranks(ranks))


def between(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """The page with these lines, and nothing else, between two marks; ValueError where one is missing."""
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no {end if found else begin}")
    return "\n".join([f"{before}{begin}", "", *lines, f"{end}{after}"])


def _made(told: Told) -> Iterator[str]:
    settings, versions, machine = told["settings"], told["versions"], told["machine"]
    kernel = machine["kernel"].split("-")[0]
    yield (
        f"`python -m benchmarks.data`, {told['when'][:10]}, {machine['cores']} cores ({machine['cpu']}), kernel"
        f" {kernel}, Python {versions['python']}, torch {versions['torch']}. {settings['samples']:,} samples"
        f" of lognormal sizes, mean {(settings['mean_bytes'] >> 10) + 8} KiB, in shards of {settings['chunk']}; room"
        f" for {settings['share']:.0%} of them; batches of {settings['batch']}; a first epoch, then"
        f" {settings['rounds']} rounds in which all take turns."
    )
    yield ""


def _ranks(told: Told) -> Iterator[str]:
    machine, source = told["machine"], told["source"]
    kib = told["sample_bytes"] / 1024
    runs = len(next(iter(told["results"].values())))
    yield (
        f"`python -m benchmarks.three_ranks`, {told['when'][:10]}, {told['world']} ranks and as many servers on"
        f" {machine['cores']} cores ({machine['cpu']}); {told['samples']:,} samples of {kib:g} KiB in chunks of"
        f" {told['chunk']}, memory for {told['share']:.0%} of them a rank; the source takes {source['name']}. Third"
        " epochs, in the middle of which a server is killed or stopped; one that is full has an eighth of what the"
        f" others have, from the first epoch on. Medians of {runs} runs. The delivered bytes were the same in all."
    )
    if told["when"] < _BATCHES:
        yield ""
        yield (
            "**Made before workers took whole batches from servers"
            " ([decision 147](decisions/0147-workers-take-batches-from-servers.md)); not measured since.**"
        )
    yield ""
    yield "| case | samples/s, all ranks | time, times that apart | reads a chunk, all ranks | samples read alone |"
    yield "| --- | --- | --- | --- | --- |"
    apart = _last(told["results"]["apart"], "ns")
    for case, told_runs in told["results"].items():
        ns = _last(told_runs, "ns")
        reads, alone = _last(told_runs, "reads_per_chunk"), _last(told_runs, "direct_reads")
        yield f"| {case} | {told['samples'] / ns * 1e9:,.0f} | {ns / apart:.1f} | {reads:.2f} | {alone:,.0f} |"
    yield ""


def _last(runs: Iterable[Told], figure: str) -> float:
    return median(run["epochs"][-1][figure] for run in runs)


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
    told = (json.loads((DOCS / name).read_text()) for name in ("data.json", "three-ranks.json"))
    page.write_text(rewritten(page.read_text(), *told))
