"""The first part of docs/validation.md, from the results of benchmarks/blind_validation.py."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench, validation_page
from benchmarks._blind_commitment import FIRST, FORCED, outcome_of, results_of, tries_in
from benchmarks._page_parts import headings, processor
from sentinel.core.units import format_bytes

PAGE = _bench.ROOT / "docs" / "validation.md"
GOALS = {"ratio_mean": 0.02, "ratio_worst": 0.02, "added_mean": 0.08, "added_worst": 0.20, "added_bias": 0.03}
"""Errors as shares; their signs do not matter."""
RANKED = 0.95
"""Of the pairs of policies that were predicted apart."""

_HEAD = """# Simulated against executed

The first part says what was predicted before it was executed. The last one has layer times of the run that it judges,
and tests scheduling only.
"""
_NOT_YET = """## Predicted first, executed afterwards

Not run yet: all six examples, `python -m benchmarks.blind_validation --predict`, then `--judge`, which takes hours.
"""
_THREE_TIERS = """The same with real copies is on a [page of three tiers](validation-three-tiers.md): there, for our
plans, the error of the time that slow memory adds is {ours}."""
_TITLES = {"": "## Predicted first, executed afterwards", "quick-": "## The same, quick: two examples, three policies"}
_HOW = """
`python -m benchmarks.blind_validation --predict{option}`, then `--judge{option}`: {cores} cores of an {cpu}, {threads}
threads, {torch}, {fast} fast memory, `{slow}`, {rounds} turns of {group} steps or more, {seconds} s at least, the first
step of a turn left out; {first} to {last}, others had at most {others:.0%} of the processors.
**Copies are real, delays of slow accesses are injected.**

Predictions were written at {when}, before the runs{committed}, with this SHA-256
([{stem}predictions.json](validation/{stem}predictions.json)):

```
{sha256}
```

{tries}

Predicted is the ratio of a step to one with everything fast. It comes from a run in which everything was fast, and from
how fast this host copies beside {beside}: {links}.{lost} Plans are carried out as they were saved, {executed_links}. A
process that trains plainly and those that follow plans take turns, and each turn is held against the plain ones before
and after it. Predictions assume that a step waits for each late move, **and so does what is judged**. A session stops
waiting if that is faster ([decision 77](decisions/0077-a-trial-decides-on-evidence.md)), which no prediction models:
there plans that are late often, such as those of `capuchin` and `next-use`, take less time than here.
"""
_TABLE = """
Each error is predicted over executed, less one: of the ratio, and of the time that slow memory adds, which is left out
where less than 1 % of a step is added. Executed is the median of the turns; beside it are the quartiles, and the least
and the most. `all-fast` moves nothing: its error is that of the method.{forced}
"""
_OF_FORCED = """ `sentinel-forced` is ours **forced to move**: planned as if
moves took nothing from compute, then predicted and executed where they do. At the price of moves ours moves nothing
there, and no plan of ours that moves would be judged."""
_OTHER_LINKS = """but **not on the links that were predicted**: movers were throttled to the rates that had been asked
for, and went as fast as the host copied"""
_LAWS = """a latency costs 1.5 times what was asked for, half of the time that
bytes of slow accesses take is hidden behind compute, and a transfer that begins while another one is under way has half
the link"""
_OTHER = """
### Other physics

The emulator obeys other laws here than the model: {laws}. The predictions are the same. Judged is the order: {kept} of
{pairs} pairs of policies that were predicted more than 3 % apart came in the predicted order{share}; the goal is 95 %.
"""


def write() -> None:
    """The page again, from all results that there are."""
    PAGE.write_text(made(PAGE.parent))


def made(docs: Path) -> str:
    """docs/validation.md."""
    old, tiers = (json.loads((docs / f"validation{stem}.json").read_text()) for stem in ("", "-three-tiers"))
    ours = validation_page.of_ours([cell for cell in tiers["results"]["cells"] if "error" in cell])
    told = textwrap.fill(_THREE_TIERS.format(ours=ours), 120, break_on_hyphens=False)
    old_page = validation_page.page(old, heading=f"## Layer times of the same run\n\n{told}")
    return sections(docs / "validation") + "\n" + old_page


def sections(folder: Path) -> str:
    """The parts for the whole and for the quick table, as far as they were run."""
    told = [part for stem in _TITLES if (folder / f"{stem}results.json").exists() for part in _section(folder, stem)]
    whole = (folder / "results.json").exists()
    return "\n".join([_HEAD, *([] if whole else [_NOT_YET]), *told])


def _section(folder: Path, stem: str) -> Iterator[str]:
    told = json.loads((folder / f"{stem}results.json").read_text())
    predicted = json.loads((folder / f"{stem}predictions.json").read_text())["results"]
    of, throttled = told["predictions"], all("machine_sha256" in each for each in predicted.values())
    cells = told["results"]["cells"]
    whens = sorted(each["when"] for each in cells)
    yield _TITLES[stem]
    yield _HOW.format(
        option=" --quick" if stem else "",
        stem=stem,
        cores=told["machine"]["cores"],
        cpu=processor(told["machine"]),
        torch=f"torch {told['versions']['torch']}",
        first=whens[0],
        last=whens[-1],
        others=max(0.0, *(each.get("others_share", 0.0) for each in (*cells, *predicted.values()))),
        sha256=of["sha256"],
        when=of["when"],
        committed=f", and committed alone (`{of['commit'][:12]}`, {of['committed']})" if "commit" in of else "",
        tries=_tries(folder, of["when"]),
        executed_links="on those links" if throttled else _OTHER_LINKS,
        links=_links(predicted),
        beside=_beside(predicted),
        lost=_lost(predicted),
        **{name: told[name] for name in ("threads", "fast", "slow", "rounds", "group", "seconds")},
    )
    for physics, found in told["results"]["summaries"].items():
        mine = [each for each in cells if each["physics"] == physics]
        if physics == "other":
            share = f" ({found['pairs_kept'] / found['pairs']:.0%})" if found["pairs"] else ""
            yield _OTHER.format(laws=_LAWS, kept=found["pairs_kept"], pairs=found["pairs"], share=share)
        else:
            yield from _goals(found)
        is_forced = any(each["policy"] == FORCED for each in mine)
        yield _TABLE.format(forced=_OF_FORCED if is_forced else "") if physics == "same" else ""
        yield from _table(mine, predicted)
        yield ""


def _tries(folder: Path, when: str) -> str:
    """How often predictions were made, and what those before these were found to be."""
    tries = [_with_outcome(folder, each) for each in tries_in(folder) if each["when"] <= when]
    if len(tries) < 2:
        return "These are the first predictions: no run had been judged before they were written."
    earlier = "; ".join(f"{each['when']} ({_outcome(each)})" for each in tries[:-1])
    why = tries[-1]["why"]
    why = "the first of these examples and policies together" if why == FIRST else f"made again since {why}"
    return (
        f"**These are predictions number {len(tries)}**, {why}. They are blind to the\n"
        "runs that judge them, and not to earlier ones: whoever made them knew what had become of those of\n"
        f"{earlier}."
    )


def _with_outcome(folder: Path, tried: dict[str, Any]) -> dict[str, Any]:
    """With the errors found, also where the results still lie beside the predictions."""
    path = results_of(folder / tried["predictions"])
    judged = json.loads(path.read_text()) if path.exists() else None
    if judged is None or judged["predictions"]["sha256"] != tried["sha256"]:
        return tried
    return {**tried, **outcome_of(judged)}


def _outcome(tried: Mapping[str, Any]) -> str:
    """Errors are those of policies that move, in the mean."""
    ratio, added = (tried.get(name) for name in ("ratio_mean", "added_mean"))
    if ratio is None or added is None:
        return "not judged"
    return f"off by {ratio:.1%} of the step and {added:.1%} of the added time"


def _goals(found: Mapping[str, Any]) -> Iterator[str]:
    """The errors of policies that move, each beside its goal."""
    yield "| of policies that move | found | goal | |"
    yield "| --- | --- | --- | --- |"
    words = {
        "ratio_mean": f"error of the ratio, mean of {found['cells']} cells",
        "ratio_worst": "the same, worst",
        "ratio_bias": "the same, mean with its sign",
        "added_mean": f"error of the added time, mean of {found['added_cells']} cells",
        "added_worst": "the same, worst",
        "added_bias": "the same, mean with its sign",
    }
    for name, what in words.items():
        if name not in found:  # of results from before it was told
            continue
        value, goal, sign = found[name], GOALS.get(name), "" if name.endswith("mean") else "+"
        shown = "–" if value is None else f"{value:{sign}.1%}"
        verdict = "" if value is None or goal is None else "held" if abs(value) <= goal else "**not held**"
        yield f"| {what} | {shown} | {'–' if goal is None else f'{goal:.0%}'} | {verdict} |"
    pairs, kept = found["pairs"], found["pairs_kept"]
    if pairs:
        verdict = "held" if kept / pairs >= RANKED else "**not held**"
        what = "order of pairs predicted more than 3 % apart, all policies"
        yield f"| {what} | {kept} of {pairs} | {RANKED:.0%} | {verdict} |"


def _table(cells: Sequence[Mapping[str, Any]], predicted: Mapping[str, Any]) -> Iterator[str]:
    heads = ["example", "policy", "moved a step", "predicted", "executed", "quartiles", "least … most", "error"]
    heads.append("of added time")
    yield from headings(*heads)
    for each in sorted(cells, key=lambda cell: cell["example"]):
        least, lower, _, upper, most = spread(each["ratios"])
        row = predicted[each["example"]].get("policies", {}).get(each["policy"], {})
        added = each["added_error"]
        told = (
            *(each["example"], each["policy"], format_bytes(row["migrated_bytes"]) if "migrated_bytes" in row else "–"),
            *(f"{each['predicted']:.3f}", f"{each['executed']:.3f}"),
            *(f"{lower:.3f} … {upper:.3f}", f"{least:.3f} … {most:.3f}"),
            *(f"{each['error']:+.1%}", "–" if added is None else f"{added:+.0%}"),
        )
        yield f"| {' | '.join(told)} |"


def spread(values: Sequence[float]) -> list[float]:
    """Least, lower quartile, median, upper quartile, most."""
    inner = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return [min(values), *inner, max(values)]


def _links(predicted: Mapping[str, Any]) -> str:
    """The least and the most that a link was predicted with, over all examples, beside what was asked for."""
    ways = {"to fast memory": True, "out of it": False}
    told = []
    for words, up in ways.items():
        rates, asked = (
            [rate for each in predicted.values() for _, target, rate in each[name] if (target == 0) == up]
            for name in ("links", "asked_links")
        )
        told.append(
            f"{min(rates) / 1e9:.1f} to {max(rates) / 1e9:.1f} GB/s {words} where {max(asked) / 1e9:.1f} were asked for"
        )
    return ", ".join(told)


def _beside(predicted: Mapping[str, Any]) -> str:
    """What ran while copies were timed."""
    return "its steps" if all(each.get("beside_steps") for each in predicted.values()) else "matrix products"


def _lost(predicted: Mapping[str, Any]) -> str:
    """What moves were predicted to take from compute, over all examples."""
    rows = [row for each in predicted.values() for row in each.get("lost", [])]
    if not rows:
        return " What moves takes from compute had no price then."
    a_mib, a_move = ([row[place] for row in rows] for place in (2, 3))
    return (
        f" What moves takes from compute was measured so too: {min(a_mib) * 1.024:.0f} to {max(a_mib) * 1.024:.0f} µs"
        f" for each MiB and {min(a_move) / 1e3:.0f} to {max(a_move) / 1e3:.0f} µs for each migration."
    )
