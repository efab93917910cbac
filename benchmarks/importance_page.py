"""What docs/data.md says of selection by loss, from docs/importance.json: benchmarks.data_page writes it there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks._page_parts import Told, between, headings

BEGIN = "<!-- selection by loss: made by `python -m benchmarks.data_page` -->"
END = "<!-- end of selection by loss -->"
_MODES = {
    "full": "all",
    "select": "selected",
    "unbiased": "selected, weighted",
    "substitute": "selected, with substitutes",
}


def rewritten(page: str, told: Told, jobs: Told) -> str:
    """The page's text with the table, what follows from it, and what `jobs` read together; ValueError without its
    marks."""
    return between(page, BEGIN, END, [*_made(told), *_table(told), *_said(told), *_together(jobs)])


def _made(told: Told) -> Iterator[str]:
    settings = told["settings"]
    yield (
        f"`python -m benchmarks.importance`, {told['when'][:10]}, commit {told['commit']}: a network of one hidden"
        f" layer, {settings['samples']:,} of scikit-learn's digits, {settings['epochs']} epochs, mean and"
        f" standard error of {settings['seeds']} seeds, tested on 597 digits. Lost: points of accuracy below all"
        " samples with the same seed, digits and labels, with the standard error of these differences. Hits: memory for"
        " a fifth of the samples, each read alone, from the second epoch on; never-evict: the same epochs, where a"
        " fifth of the samples stays for good. Reads: chunks of 16."
    )
    yield ""


def _table(told: Told) -> Iterator[str]:
    yield from headings(
        "wrong labels", "samples", "accuracy", "lost", "delivered", "hits", "never-evict", "reads a chunk"
    )
    for row in told["results"]["rows"]:
        lost = "-" if row["mode"] == "full" else _points(row)
        cells = (
            f"{row['noise']:.0%}",
            _MODES[row["mode"]],
            f"{row['accuracy']:.3f} ± {row['accuracy_error']:.3f}",
            lost,
            f"{row['delivered']:.2f}",
            f"{row['hits']:.3f}",
            f"{row['never_evict_hits']:.3f}",
            f"{row['reads_per_chunk']:.2f}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _said(told: Told) -> Iterator[str]:
    rows = {(row["noise"], row["mode"]): row for row in told["results"]["rows"]}
    noises = sorted({noise for noise, _ in rows})
    of = {mode: [rows[noise, mode] for noise in noises] for mode in _MODES}
    fewer = 1 - sum(row["delivered"] for row in of["select"]) / len(noises)
    hits = ", ".join(f"{row['hits'] / row['never_evict_hits']:.2f}" for row in of["select"])
    beyond = [f"{row['noise']:.0%}" for row in of["select"] if row["lost"] > row["lost_error"]]
    yield (
        f"With {', '.join(f'{noise:.0%}' for noise in noises)} wrong labels: selection delivers {fewer:.0%}"
        f" fewer samples in the mean, and loses {', '.join(map(_points, of['select']))} points"
        + (
            f", more than one standard error with {' and '.join(beyond)}"
            if beyond
            else ", each within one standard error"
        )
        + f"; weighted {', '.join(map(_points, of['unbiased']))}. It hits {hits} times as often as never-evict."
        f" Substitutes cost {', '.join(map(_points, of['substitute']))} points. They hit more often where samples are"
        " read alone; where chunks are read ahead they save nothing, and read more: nothing is kept for an epoch whose"
        " substitutes are not known. These are digits: they show a direction, not what larger data sets do."
    )
    yield ""


def _together(told: Told) -> Iterator[str]:
    settings, runs = told["settings"], told["results"]
    alone, shared = ([run[how] for run in runs] for how in ("alone", "shared"))
    fewer = [1 - one / other for one, other in zip(shared, alone, strict=True)]
    yield (
        f"`python -m benchmarks.selecting_jobs`, {told['when'][:10]}, commit {told['commit']}: two jobs that train on"
        f' the same {settings["samples"]:,} digits, each with a model, an order and `memory="{settings["memory"]}"`'
        f" of its own, {settings['epochs']} epochs. Of the samples that they deliver from the third epoch on,"
        f" {_share(alone)} are read where each has its memory for itself, {_share(shared)} with one `share=`:"
        f" {fmean(fewer):.0%} fewer ({min(fewer):.0%} to {max(fewer):.0%} in {len(runs)} pairs)."
        " A digit is 260 bytes, so half of this memory is for what stands beside each sample; larger ones leave more."
    )
    yield ""


def _share(found: Sequence[float]) -> str:
    return f"{fmean(found):.0%}"


def _points(row: Told) -> str:
    """What a mode loses, below 0 where it gains, with its standard error."""
    return f"{100 * row['lost']:.1f} ± {100 * row['lost_error']:.1f}"
