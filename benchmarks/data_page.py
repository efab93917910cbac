"""The tables of docs/data.md, and the goals that they were made for: loaders of training data side by side, from
docs/data.json, torch's and ours alone from docs/data-closely.json; of chunks that are decoded as a whole from
docs/data-encoded.json; what a loader takes beside reading, from docs/data-limits.json; and ranks with and without
peers, from docs/three-ranks.json.

`python -m benchmarks.data_run` runs all of them; python -m benchmarks.data_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import importance_page
from benchmarks._bench import paired
from benchmarks._data_goals import IDLE, Goal, goals, speeds
from benchmarks._page_parts import between
from benchmarks.data import EXACT, LAST_USED, PLAIN

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- beside other loaders: made by `python -m benchmarks.data_page` -->"
END = "<!-- end of beside other loaders -->"
CLOSELY_BEGIN = "<!-- compared closely: made by `python -m benchmarks.data_page` -->"
CLOSELY_END = "<!-- end of compared closely -->"
ENCODED_BEGIN = "<!-- chunks decoded as a whole: made by `python -m benchmarks.data_page` -->"
ENCODED_END = "<!-- end of chunks decoded as a whole -->"
GOALS_BEGIN = "<!-- goals: made by `python -m benchmarks.data_page` -->"
GOALS_END = "<!-- end of goals -->"
LIMITS_BEGIN = "<!-- beside reading: made by `python -m benchmarks.data_page` -->"
LIMITS_END = "<!-- end of beside reading -->"
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


def rewritten(page: str, loaders: Told, closely: Told, ranks: Told) -> str:
    """The page's text with the tables of all three; ValueError without their marks."""
    page = between(page, BEGIN, END, [*_made(loaders, ""), *_tables(loaders)])
    page = between(page, CLOSELY_BEGIN, CLOSELY_END, [*_made(closely, " --closely"), *_tables(closely)])
    return between(page, RANKS_BEGIN, RANKS_END, _ranks(ranks))


def with_limits(page: str, encoded: Told, limits: Told) -> str:
    """The page's text with the tables of chunks that are decoded as a whole, and of what a loader takes beside reading;
    ValueError without their marks."""
    return between(
        between(page, ENCODED_BEGIN, ENCODED_END, _encoded(encoded)), LIMITS_BEGIN, LIMITS_END, _limits(limits)
    )


def with_goals(page: str, reached: Sequence[Goal], loaders: Told) -> str:
    """The page's text with what was to be reached beside what was, some of it by `loaders`; ValueError without its
    marks."""
    return between(page, GOALS_BEGIN, GOALS_END, [*_goals(reached), *_outdated(loaders)])


def _goals(reached: Sequence[Goal]) -> Iterator[str]:
    measured = [goal for goal in reached if goal.figure is not None]
    missed = [goal for goal in measured if not goal.met]
    yield (
        "Times count only where it was recorded that the host did little else."
        f" {len(measured)} of {len(reached)} goals were measured so; missed: {len(missed)}."
    )
    yield ""
    yield from (f"- {goal.what}: {goal.figure}, not {goal.wanted}" for goal in missed)
    yield ""
    yield "| goal | wanted | found | |"
    yield "| --- | --- | --- | --- |"
    for goal in reached:
        word = goal.unknown if goal.figure is None else "met" if goal.met else "**missed**"
        yield f"| {goal.what} | {goal.wanted} | {goal.figure or '-'} | {word} |"
    yield ""


def _commit(told: Told) -> str:
    """The commit that ran, where it was written down."""
    return f", commit {told['commit']}" if "commit" in told else ""


def _made(told: Told, words: str) -> Iterator[str]:
    settings, versions, machine = told["settings"], told["versions"], told["machine"]
    kernel = machine["kernel"].split("-")[0]
    yield (
        f"`python -m benchmarks.data{words}`, {told['when'][:10]}{_commit(told)}, {machine['cores']} cores"
        f" ({machine['cpu']}), kernel {kernel}, Python {versions['python']}, torch {versions['torch']}."
        f" {settings['samples']:,} samples of lognormal sizes, mean {(settings['mean_bytes'] >> 10) + 8} KiB, in shards"
        f" of {settings['chunk']}; room for {settings['share']:.0%} of them; batches of {settings['batch']}; a first"
        f" epoch, then {settings['rounds']} rounds in which all take turns."
    )
    yield ""
    yield from _outdated(told)
    if any("others_share" not in result for result in told["results"]):
        yield "What other work the host did was not recorded, so these times count for no goal."
        yield ""


def _outdated(loaders: Told) -> Iterator[str]:
    """What has changed since loaders were measured whose commit was not written down."""
    if "commit" not in loaders:
        yield (
            "Of loaders side by side, times and reads of sentinel exact were measured before less of its memory was"
            " kept for reading ahead ([decision 154](decisions/0154-less-of-the-memory-is-kept-for-reading-ahead.md))"
            " and before its windows ended where a read and its memory cost least ([decision"
            " 194](decisions/0194-a-window-ends-where-its-memory-is-worth-it.md)), those of sentinel redirect before"
            " its groups had as many chunks as its memory is for ([decision"
            " 164](decisions/0164-redirect-has-the-groups-that-its-memory-is-for.md))."
        )
        yield ""


def _encoded(told: Told) -> Iterator[str]:
    settings, results = told["settings"], told["results"]
    others = max(result["others_share"] for result in results)
    told_apart = all("cpu_s" in rival["first"] for result in results for rival in result["rivals"].values())
    yield (
        f"`python -m benchmarks.data --encoded`, {told['when'][:10]}{_commit(told)}: {settings['samples']:,} samples of"
        f" lognormal sizes, mean {(settings['mean_bytes'] >> 10) + 8} KiB, {settings['chunk']} a chunk; room for"
        f" {settings['share']:.0%} of them, one worker; a first epoch, then {settings['rounds']} in which both take"
        f" turns. {_said_of_times(others, told_apart)}"
    )
    yield ""
    heads = ["chunks", "loader", "reads a chunk: first epoch, next", "times those of the loader in exact order"]
    heads += ["seconds of a processor for 1,000 samples"] if told_apart else []
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    chunks = settings["samples"] / settings["chunk"]
    for result in results:
        ours = median(epoch["reads"] for epoch in result["rivals"][EXACT]["rounds"])
        for name in (LAST_USED, EXACT):
            rival = result["rivals"][name]
            reads = median(epoch["reads"] for epoch in rival["rounds"])
            cells = [result["source"]["name"], name, f"{rival['first']['reads'] / chunks:.2f}, {reads / chunks:.2f}"]
            cells.append(f"{reads / ours:.1f}")
            if told_apart:
                cells.append(f"{median(epoch['cpu_s'] / epoch['samples'] for epoch in rival['rounds']) * 1000:.3f}")
            yield f"| {' | '.join(cells)} |"
    yield ""
    if others <= IDLE:
        for result in results:
            found = paired(speeds(result["rivals"], EXACT, LAST_USED), EXACT, LAST_USED)
            yield f"Samples a second, {result['source']['name']}: {found['median']:.1f} times those of the {LAST_USED}."
            yield ""


def _limits(told: Told) -> Iterator[str]:
    settings, results = told["settings"], told["results"]
    timed = [row for part in ("index", "begin", "resume") for row in results[part]]
    machine, others = told["machine"], max(row["others_share"] for row in timed)
    yield (
        f"`python -m benchmarks.data_limits`, {told['when'][:10]}{_commit(told)}, {machine['cores']} cores"
        f" ({machine['cpu']}), {settings['rounds']} of each. {_said_of_times(others)}"
    )
    yield ""
    if others <= IDLE:
        yield from _times(told)
    jobs, chunk = results["share"], settings["chunk"]
    yield (
        f"Two jobs of two workers each, {settings['shared']:,} rows of {settings['shared_row_bytes'] >> 10} KiB in"
        f" chunks of {chunk}, room for {settings['share']:.0%} of them, two epochs. Memory: what the kernel counts for"
        " the samples in all processes (Pss), over that of one job."
    )
    yield ""
    yield "| jobs | reads a chunk and epoch, all jobs | samples read alone | memory |"
    yield "| --- | --- | --- | --- |"
    for name, one in jobs.items():
        cells = f"{one['reads_per_chunk']:.2f}", str(one["direct_reads"])
        yield f"| {name} | {' | '.join(cells)} | {one['pss_bytes'] / jobs['alone']['arena_bytes']:.2f} |"
    yield ""


def _times(told: Told) -> Iterator[str]:
    settings, results = told["settings"], told["results"]
    yield "| what | seconds | seconds of a processor |"
    yield "| --- | --- | --- |"
    begins, whole = results["begin"], f"of {settings['large']:,} samples"
    rows = (
        (f"index {settings['indexed']:,} samples of 1 KiB, headers in the page cache", results["index"], ""),
        (f"plan the first epoch {whole}", begins, "planning_"),
        (f"plan the last twentieth of an epoch {whole}", results["resume"], "planning_"),
        ("then to the first batch, at the begin", begins, "beyond"),
        ("then to the first batch, in the last twentieth", results["resume"], "beyond"),
    )
    for name, found, part in rows:
        yield f"| {name} | {' | '.join(f'{_seconds(found, part, kind):.2f}' for kind in ('seconds', 'cpu_s'))} |"
    yield ""


def _said_of_times(others_share: float, told_apart: bool = True) -> str:
    """`told_apart`: loaders' own workers do not count as others."""
    if others_share <= IDLE:
        return "The host did little else."
    others = "Other work" if told_apart else "Other work, or workers of loaders that were not told apart from it,"
    return (
        f"{others} had up to {others_share:.0%} of the processors meanwhile: counts do not depend on it; times do, and"
        " are in the JSON only."
    )


def _seconds(rows: Sequence[Told], part: str, kind: str) -> float:
    if part == "beyond":
        return median(row[kind] - row[f"planning_{kind}"] for row in rows)
    return median(row[f"{part}{kind}"] for row in rows)


def _ranks(told: Told) -> Iterator[str]:
    machine, source = told["machine"], told["source"]
    kib = told["sample_bytes"] / 1024
    runs = len(next(iter(told["results"].values())))
    yield (
        f"`python -m benchmarks.three_ranks`, {told['when'][:10]}{_commit(told)}, {told['world']} ranks and as many"
        f" servers on {machine['cores']} cores ({machine['cpu']}); {told['samples']:,} samples of {kib:g} KiB in chunks"
        f" of {told['chunk']}, memory for {told['share']:.0%} of them a rank; the source takes {source['name']}. Third"
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
    reads_of = "reads a chunk, all ranks: from the second epoch on, in the third"
    yield f"| case | samples/s, all ranks | time, times that apart | {reads_of} | samples read alone |"
    yield "| --- | --- | --- | --- | --- |"
    apart = _last(told["results"]["apart"], "ns")
    for case, told_runs in told["results"].items():
        ns = _last(told_runs, "ns")
        reads, alone = _last(told_runs, "reads_per_chunk"), _last(told_runs, "direct_reads")
        later = median(fmean(epoch["reads_per_chunk"] for epoch in run["epochs"][1:]) for run in told_runs)
        speed = f"{told['samples'] / ns * 1e9:,.0f} | {ns / apart:.1f}"
        yield f"| {case} | {speed} | {later:.2f}, {reads:.2f} | {alone:,.0f} |"
    yield ""


def _last(runs: Iterable[Told], figure: str) -> float:
    return median(run["epochs"][-1][figure] for run in runs)


def _tables(told: Told) -> Iterator[str]:
    samples, chunk = told["settings"]["samples"], told["settings"]["chunk"]
    for result in told["results"]:
        source, rivals = result["source"], result["rivals"]
        yield f"### {source['name'][0].upper()}{source['name'][1:]}, {source['workers']} workers"
        yield ""
        yield f"| {' | '.join(_HEADS)} |"
        yield f"| {' | '.join('---' for _ in _HEADS)} |"
        measured = {
            name: rival for name, rival in rivals.items() if rival.get("rounds") and "not_measured" not in rival
        }
        data = measured.get(PLAIN, {}).get("rounds", [{}])[0].get("read_bytes")
        for name, rival in measured.items():
            yield _row(name, rival, measured, samples / rival.get("chunk", chunk), data)
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
        found = paired(speeds(measured, name, PLAIN), name, PLAIN)
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


def main() -> None:
    """Write the page."""
    page = DOCS / "data.md"
    names = ("data", "data-closely", "three-ranks", "data-encoded", "data-limits", "importance", "selecting-jobs")
    all_told = (json.loads((DOCS / f"{name}.json").read_text()) for name in names)
    loaders, closely, ranks, encoded, limits, importance, jobs = all_told
    text = with_limits(rewritten(page.read_text(), loaders, closely, ranks), encoded, limits)
    text = importance_page.rewritten(text, importance, jobs)
    page.write_text(with_goals(text, goals(loaders, closely, encoded, ranks, limits, importance), loaders))


if __name__ == "__main__":
    main()
