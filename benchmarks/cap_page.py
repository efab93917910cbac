"""docs/cap.md and what the README says of it, from docs/cap.json and the results of other models beside it.

python -m benchmarks.cap_page
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import _cap_goals, _page_parts
from benchmarks._cap_figures import FILE, OVERLAP, PASSIVE, STOCK, SWAP, TUNED, added_over
from benchmarks._page_parts import between
from sentinel.core.units import counted

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
BEGIN = "<!-- a cap: made by `python -m benchmarks.cap_page` -->"
END = "<!-- end of a cap -->"
MODELS = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "lstm": "LSTM"}
PUBLISHED = {"resnet50": "−81 % (ResNet)", "vgg16": "−69 % (VGG)", "lstm": "−70 to −98 % (all models)"}
"""Of peak memory, by nntrainer, a framework that swaps on devices; it does not say how much slower steps are."""
LABELS = {
    STOCK: "stock",
    TUNED: "stock, malloc keeps its memory",
    FILE: "file",
    OVERLAP: "file, updates in backward",
    PASSIVE: "file, nothing read ahead",
    SWAP: "swap",
}

Told = Mapping[str, Any]

_HEAD = """# Training under a cap on the whole process

`python -m benchmarks.cap --directory DIR --into docs/cap.json`, {where}
It took {minutes:.0f} minutes. {model}
Stock PyTorch takes {peak:,.0f} MiB at its peak, as its memory cgroup counts; caps are shares of that. Its resident
pages are {rss:,.0f} MiB: libraries that were in memory already count there. Processes take turns of {turn} steps, of
which the last counts, {rounds} turns each after {born} that do not count; medians, least and most in brackets. Figures
in [cap.json](cap.json).

- *file*: `start_profile(cap=..., slow="file:DIR")` before the model is built, in a cgroup whose limit is the cap,
  nothing else changed; *updates in backward*: with `overlap_optimizer=True`; *nothing read ahead*: no step is recorded.
- *swap*: stock PyTorch in a cgroup of that limit, and the kernel's own swap in a file on the same disk.
- *over stock*: the median of the rounds' ratios, each of a step over one of stock in the same round; *over tuned*: over
  one of stock with a malloc that keeps its memory.
- *bound*: a time below which no order of reads and writes can stay in the most frames that there were as turns ended,
  at the rates of the disk below, if operators compute as fast as with such a malloc / as in stock; a step below it had
  faster ones, so it says nothing of how near the best such a step is
  ([decision 184](decisions/0184-caps-are-shares-of-the-process-and-steps-stand-beside-an-unclipped-bound.md)).
- *read*, *written*: by the file tier, a step; *in vain*: read ahead and not used before it left or died; written and
  never read again, at most. *Waited*: what operators waited for the disk. Means over all steps of turns that count.
- *peak*: of the cgroup, page cache included; *met*: how often its limit was.

"""


def page(told: Told, models: Iterable[Told] = ()) -> str:
    """The page as Markdown. `told`, `models`: what the benchmark says of the GPT-2, and of others."""
    others = list(models)
    lines = [_head(told), *_table(told), "", *_disks(told), "", *_models(others), *_goals([told, *others])]
    return "\n".join(lines) + "\n"


def summary(told: Told, models: Iterable[Told] = ()) -> list[str]:
    """The README's paragraph. `told`, `models`: as of `page`."""
    return _filled(_summary(told, _of_goals([told, *models])))


def results() -> tuple[Told, list[Told]]:
    """Of the GPT-2, and of others as far as there are any, in docs."""
    paths = [DOCS / f"cap-{name}.json" for name in MODELS]
    told, *others = [_read(path) for path in (DOCS / "cap.json", *paths) if path.exists()]
    return told, others


def _read(path: Path) -> Told:
    """What was measured, and its goals as they are judged now."""
    told: dict[str, Any] = json.loads(path.read_text())
    return told | {"goals": [goal._asdict() for goal in _cap_goals.goals(told)]}


def _head(told: Told) -> str:
    layers, width, rows, columns = told["shape"]
    return (
        _HEAD.format(
            where=_page_parts.where(told),
            minutes=sum(found["took_s"] for found in told["results"]) / 60,
            model=f"A GPT-2 of {layers}×{width}, {told['vocabulary']:,} tokens, batch {rows}×{columns}, AdamW.",
            peak=told["stock"]["peak_bytes"] / 2**20,
            rss=told["stock"]["peak_rss_bytes"] / 2**20,
            **{name: told[name] for name in ("turn", "rounds", "born")},
        ).rstrip("\n")
        + "\n"
    )


def _table(told: Told) -> Iterator[str]:
    yield from _page_parts.headings(
        "cap", "", "step s", "over stock", "over tuned", "bound s", "step over bound", "read MiB", "in vain",
        "written MiB", "in vain", "waited s", "peak MiB", "met",
    )  # fmt: skip
    for found in told["results"]:
        cap = f"{found['share']:.0%}, {found['cap_bytes'] >> 20:,} MiB"
        for name, label in LABELS.items():
            if name in found["step_s"]:
                here = "none" if name in (STOCK, TUNED) else cap
                yield f"| {' | '.join([here, label, *_row(found, name)])} |"
            elif name in found["lost"]:
                yield f"| {cap} | {label} | {found['lost'][name]} |{' |' * 11}"


def _row(found: Told, name: str) -> list[str]:
    step = f"{found['step_s'][name]:.2f}"
    over = [_over(found, rival, name) for rival in (STOCK, TUNED)]
    moved = found["a_step"].get(name)
    of = [""] * 5
    if moved is not None:
        keys = ("read_bytes", "read_in_vain_bytes", "written_bytes", "written_in_vain_bytes")
        of = [*(f"{moved[key] / 2**20:,.0f}" for key in keys), f"{moved['waited_s']:.2f}"]
    memory = found["memory"][name]
    met = "" if name in (STOCK, TUNED) else f"{memory['limit_met']:,}"
    return [step, *over, *_bounds(found, name), *of, f"{memory['peak_bytes'] / 2**20:,.0f}", met]


def _over(found: Told, rival: str, name: str) -> str:
    if name == rival:
        return "1"
    ratio = found["over"].get(rival, {}).get(name)
    return "" if ratio is None else _page_parts.ratio(ratio)


def _bounds(found: Told, name: str) -> list[str]:
    of = found["bound"].get(name, {})
    rivals = [rival for rival in (TUNED, STOCK) if rival in of]
    return [" / ".join(f"{of[rival][key]:.2f}" for rival in rivals) for key in ("bound_s", "step_over_bound")]


def _disks(told: Told) -> Iterator[str]:
    yield "The disk, by the file tier's transfers before and after each cap; the faster figures make the bound:"
    yield ""
    for found in told["results"]:
        rates = ", then ".join(
            f"{each['read_bytes_per_s'] / 1e9:.1f} GB/s read, {each['write_bytes_per_s'] / 1e9:.1f} written, both at"
            f" once {each['together']:.2f} times as much as one after the other"
            for each in found["disks"]
        )
        others = f"others had {found['others_share']:.0%} of the processors meanwhile"
        yield f"- {found['share']:.0%}: {rates}; {others}{_swap(found)}."


def _swap(found: Told) -> str:
    if "no_swap" in found:
        return f"; no swap, since {found['no_swap']}"
    shares = {name: added_over(found["step_s"], name) for name in (FILE, OVERLAP, PASSIVE)}
    said = ", ".join(f"{LABELS[name]} {share:.3f}" for name, share in shares.items() if share is not None)
    return f"; of what swap adds to a step, these add: {said}" if said else ""


def _models(models: list[Told]) -> Iterator[str]:
    if not models:
        return
    yield "## Other models"
    yield ""
    yield (
        "`python -m benchmarks.cap --directory DIR --model MODEL --into docs/cap-MODEL.json`. *Peak* and *mean* are of"
        " the process's cgroup, of stock's; the mean is of the memory in a step, 20 times a second. *nntrainer*: what"
        " that framework publishes of its peak memory; how much slower its steps are it does not say."
    )
    yield ""
    yield from _page_parts.headings(
        "model", "batch", "stock's peak MiB", "cap", "step s", "over stock", "over tuned", "bound s", "step over bound",
        "peak", "mean", "nntrainer",
    )  # fmt: skip
    for told in models:
        for found in told["results"]:
            yield f"| {' | '.join(_model_row(told, found))} |"
    yield ""


def _model_row(told: Told, found: Told) -> list[str]:
    name, peak = told["model"], told["stock"]["peak_bytes"]
    begin = [MODELS[name], f"{told['batch']}", f"{peak / 2**20:,.0f}", f"{found['share']:.0%}"]
    if FILE not in found["step_s"]:
        return [*begin, found["lost"].get(FILE, "not measured"), *[""] * 6, PUBLISHED[name]]
    over = [_over(found, rival, FILE) for rival in (STOCK, TUNED)]
    ours, stock = (found["memory"][row] for row in (FILE, STOCK))
    shares = [f"{ours['peak_bytes'] / peak:.0%}", f"{ours['mean_bytes'] / stock['mean_bytes']:.0%}"]
    return [*begin, f"{found['step_s'][FILE]:.2f}", *over, *_bounds(found, FILE), *shares, PUBLISHED[name]]


def _goals(all_told: list[Told]) -> Iterator[str]:
    yield "## Goals"
    yield ""
    yield from _page_parts.headings("goal", "found", "")
    for told in all_told:
        of = "" if told["model"] is None else f"{MODELS[told['model']]}, "
        for each in told["goals"]:
            met = {True: "met", False: "**missed**", None: "not judged"}[each["met"]]
            yield f"| {of}{each['goal']} | {each['found']} | {met} |"


def _of_goals(all_told: list[Told]) -> str:
    """How many goals of all models were judged, how many were not, and how many are missed."""
    verdicts = [each["met"] for told in all_told for each in told["goals"]]
    unjudged, missed = (verdicts.count(verdict) for verdict in (None, False))
    of = f"this and {counted(len(all_told) - 1, 'other model')}" if len(all_told) > 1 else "this model"
    return f" Of the goals for {of} {len(verdicts) - unjudged} were judged and {unjudged} were not; missed: {missed}."


def _summary(told: Told, goals: str) -> str:
    found = next((each for each in told["results"] if each["share"] == 0.41), told["results"][-1])
    disk, over = found["disk"], found["over"]
    ratios = [
        f"{over[rival][FILE]['median']:.2f} times as long as {words} ({over[rival][FILE]['least']:.2f} to"
        f" {over[rival][FILE]['most']:.2f})"
        for rival, words in ((STOCK, "in stock PyTorch"), (TUNED, "in stock with a malloc that keeps its memory"))
        if FILE in over.get(rival, {})
    ]
    swap = over.get(STOCK, {}).get(SWAP)
    with_swap = "" if swap is None else f"; with the kernel's swap it takes {swap['median']:.1f} times stock's"
    return (
        f"A step of a small GPT-2, in {found['cap_bytes'] >> 20:,} MiB for the whole process ({found['share']:.0%} of"
        f" what stock PyTorch takes), takes {' and '.join(ratios) or 'more than that'}{with_swap}"
        f" ([measured](docs/cap.md) on a disk that reads {disk['read_bytes_per_s'] / 1e9:.1f} and writes"
        f" {disk['write_bytes_per_s'] / 1e9:.1f} GB/s).{goals} If the disk is slower than the step needs, training"
        " waits for it: [a file as slow tier](docs/storage.md)."
    )


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False)


def main() -> None:
    """Write the page and the README's paragraph again."""
    told, models = results()
    readme = between(README.read_text(), BEGIN, END, summary(told, models))
    (DOCS / "cap.md").write_text(page(told, models))
    README.write_text(readme)


if __name__ == "__main__":
    main()
