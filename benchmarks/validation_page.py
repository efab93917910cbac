"""docs/validation.md from the results of benchmarks/validation.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._page_parts import headings, processor
from sentinel.core.units import format_bytes

_HEAD = """{heading}

`python -m benchmarks.validation{tiers} --into docs/{stem}.json`, {first} to {last}: {cores} cores of an
{cpu}, {threads} threads, {torch}, {steps} steps a run, the last {judged} of them judged; figures in
[{stem}.json]({stem}.json). Every example trains with {policies} on **emulated** slow memory (`{slow}`):
its work is real, {injected}. Every second judged step gives the layer
times that the plan is simulated with, and the prediction is compared with the steps between; then the other way round.
The error is predicted over executed step, less one, in the mean of both. While a cell ran, others had at most
{others:.0%} of the processors. In brackets, if the steps differ much: fastest and slowest over their median, less one.
"""
_TIMERS = """**Made before transfers were copied**: a transfer was a timer then, which took nothing from compute
([decision 129](decisions/0129-emulated-transfers-are-copies.md)).
"""
_WHAT_OF = """**What slow memory costs is an input here and was not validated**: the emulator injects, by the model's
own formulas, the delays that the model predicts{copies}. So this section does not say how slow a CXL memory
is, how fast pages migrate, or what migrating takes from compute. It tests scheduling: whether transfers queue, overlap
and make layers wait as the simulator says. Plan and layer times come from the run that is judged; a section below
judges what a session predicts beforehand.

For a policy that never migrates, predicted and executed are the same sum by construction, and its error only says how
much steps differ. It says nothing of the simulator, so it stands apart:

| error, as a share of | policies that migrate | policies that never do |
| --- | --- | --- |"""
_RESULT = """
**Mean error of the step {mean:.1%}, worst {worst:.1%}** ({cell}), over all {n} cells, those that never migrate
included (goal: 3 % and 8 %): {verdict}.

## As the session predicted it

The step that a report predicts is simulated after sixteen applied steps, with the layer times of the last eight of
them (docs/decisions/0067), some of which are judged here too. Its error includes how much the host's speed changed
between those steps and the others. Mean {ahead:.1%}, worst {worst_ahead:.1%}:
"""
_ADDED = """
## Time that slow memory added

Most of a step is compute, whose time the simulator is given. The table has what slow accesses and waiting add, as a
share of the executed step: predicted / executed. Executed: how much longer the step took than those layer times. In
brackets, if the policy migrates, the error of this time: predicted over executed, less one.
"""
_TIERS = """
## What each tier held

The most in any layer, transfers included, and in how many of the executed layers it was more than the tier has, and
more than the plan has there: what moves late is in both tiers until then.
"""
_MIDDLE = """`{{middle}}` is three tenths of the example's footprint: {sizes}. Migrations go between the fast tier and
the others, never between these.
"""
STAYS = ("best-static", "static", "weighted-interleave", "interleave", "first-touch", "all-fast", "all-slow")
"""Policies that place each tensor once and never migrate: what they add to a step is a sum, which nothing schedules."""
_ALIKE = 0.05


def page(told: Mapping[str, Any], stem: str = "validation", heading: str = "# Simulated against executed") -> str:
    """The page as Markdown, or the part of one under `heading`. `told`: what the benchmark printed; `stem`: of the file
    that has it."""
    text = "\n".join(_lines(told, stem, heading)) + "\n"
    return text.replace("\n## ", "\n### ") if heading.startswith("## ") else text


def _lines(told: Mapping[str, Any], stem: str, heading: str) -> Iterator[str]:
    results = told["results"]
    cells = [cell for cell in results["cells"] if "error" in cell]
    refused = [cell for cell in results["cells"] if "refused" in cell]
    days = sorted(cell["when"] for cell in results["cells"])
    policies = list(dict.fromkeys(cell["policy"] for cell in results["cells"]))
    several = [cell for cell in cells if len(cell.get("tiers", ())) > 2]
    copied = all("copied_bytes" in cell for cell in cells)
    yield _HEAD.format(
        heading=heading,
        policies=f"each of {len(policies)} policies" if len(policies) > 1 else f"`{policies[0]}`",
        injected="copies are real, delays of slow accesses are injected"
        if copied
        else "the delays of slow accesses and of transfers are injected",
        stem=stem,
        tiers=" --tiers 3" if several else "",
        first=days[0],
        last=days[-1],
        cores=told["machine"]["cores"],
        cpu=processor(told["machine"]),
        threads=told["threads"],
        torch=f"torch {told['versions']['torch']}",
        steps=told["steps"],
        judged=max((len(cell["executed_steps_ns"]) for cell in cells), default=0),
        slow=told["slow"],
        others=max((cell["others_share"] for cell in cells), default=0.0),
    )
    if several:
        sizes = {cell["example"]: format_bytes(cell["tiers"][1]["capacity_bytes"]) for cell in several}
        yield _MIDDLE.format(sizes=", ".join(f"{nbytes} for {example}" for example, nbytes in sorted(sizes.items())))
    if cells:
        if not copied:
            yield _TIMERS
        yield _WHAT_OF.format(copies="" if copied else ", and it copies nothing")
        yield from _what_of(cells)
        yield ""
        ahead = [abs(cell["error_ahead"]) for cell in cells if cell["error_ahead"] is not None]
        yield from _table(cells, _error, mean=True)
        yield _RESULT.format(
            mean=results["mean_error"],
            worst=results["worst_error"],
            cell=results["worst_cell"],
            n=len(cells),
            verdict="held" if results["holds"] else "**not held**",
            ahead=sum(ahead) / max(len(ahead), 1),
            worst_ahead=max(ahead, default=0.0),
        )
        yield from _table(cells, _ahead)
        yield _ADDED
        yield from _table(cells, _added)
    if several:
        yield _TIERS
        yield from _accounts(several)
    if refused:
        yield "\n## Not executed\n"
        for why in dict.fromkeys((cell["policy"], cell["fast"], _kind(cell["refused"])) for cell in refused):
            policy, fast, reason = why
            where = [c["example"] for c in refused if (c["policy"], c["fast"], _kind(c["refused"])) == why]
            yield f"- `{policy}` with {fast} fast memory ({', '.join(where)}): {reason}"


def _accounts(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("policy", "example", "tier", "has", "planned", "simulated", "executed", "layers", "over size", "over plan")
    yield from headings(*heads)
    for cell in cells:
        footprint = sum(row["planned_bytes"] for row in cell["tiers"])
        for row in cell["tiers"]:
            amounts = [row[f"{kind}_bytes"] for kind in ("capacity", "planned", "simulated", "executed")]
            shown = ["–" if n is None or n > 4 * footprint else format_bytes(n) for n in amounts]
            counts = [f"{row[name]:,}" for name in ("layers", "layers_above_capacity", "layers_above_plan")]
            yield f"| {' | '.join([cell['policy'], cell['example'], row['name'], *shown, *counts])} |"


def added_error(cell: Mapping[str, Any]) -> float | None:
    """Predicted over executed time that slow memory added, less one. None: none was predicted or none was added."""
    added = cell["added_ns"]
    return added["predicted"] / added["executed"] - 1 if added["predicted"] and added["executed"] > 0 else None


def migrating(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The cells of policies that migrate."""
    return [cell for cell in cells if cell["policy"] not in STAYS]


def of_ours(cells: Sequence[Mapping[str, Any]]) -> str:
    """The error of the time that slow memory adds with our plans: mean, worst, how often too low; "" without any."""
    told = [error for c in cells if c["policy"] == "sentinel" and (error := added_error(c)) is not None]
    return f"{_mean_and_worst(told)}; too low in {sum(error < 0 for error in told)} of {len(told)}" if told else ""


def _what_of(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One row a quantity: its mean error and the worst one, apart for policies that migrate and those that do not."""
    moves, stays = migrating(cells), [cell for cell in cells if cell["policy"] in STAYS]
    steps = [_mean_and_worst([cell["error"] for cell in some]) for some in (moves, stays)]
    yield f"| the step | {steps[0]} | {steps[1]} |"
    added = [_mean_and_worst([e for cell in some if (e := added_error(cell)) is not None]) for some in (moves, stays)]
    yield f"| the time that slow memory adds | {added[0]} | {added[1]} |"
    if ours := of_ours(cells):
        yield f"| the same, `sentinel` only | {ours} | |"
    ahead = [
        _mean_and_worst([c["error_ahead"] for c in some if c["error_ahead"] is not None]) for some in (moves, stays)
    ]
    yield f"| the step, as the session predicted it | {ahead[0]} | {ahead[1]} |"


def _mean_and_worst(errors: Sequence[float]) -> str:
    if not errors:
        return "–"
    cells = f"{len(errors)} cell{'s' if len(errors) > 1 else ''}"
    return f"{sum(map(abs, errors)) / len(errors):.1%}, worst {max(errors, key=abs):+.1%} ({cells})"


def _kind(reason: str) -> str:
    """The part of a refusal that is the same for every example."""
    return reason.partition(": ")[2] or reason


def _table(cells: Sequence[Mapping[str, Any]], show: Any, *, mean: bool = False) -> Iterator[str]:
    examples = sorted({cell["example"] for cell in cells})
    rows = list(dict.fromkeys((cell["policy"], cell["fast"]) for cell in cells))
    heads = ["policy", "fast", *examples, *(["mean error", "worst"] if mean else [])]
    yield from headings(*heads)
    for policy, fast in rows:
        mine = {c["example"]: c for c in cells if (c["policy"], c["fast"]) == (policy, fast)}
        shown = [show(mine[example]) if example in mine else "" for example in examples]
        errors = [abs(cell["error"]) for cell in mine.values()]
        ends = [f"{sum(errors) / len(errors):.1%}", f"{max(errors):.1%}"] if mean else []
        yield f"| {' | '.join([policy, fast, *shown, *ends])} |"


def _error(cell: Mapping[str, Any]) -> str:
    steps = [took / cell["executed_ns"] - 1 for took in cell["executed_steps_ns"]]
    least, most = min(steps), max(steps)
    spread = f" ({least:+.0%}, {most:+.0%})" if max(-least, most) > _ALIKE else ""
    return f"{cell['error']:+.1%}{spread}"


def _ahead(cell: Mapping[str, Any]) -> str:
    return "" if cell["error_ahead"] is None else f"{cell['error_ahead']:+.1%}"


def _added(cell: Mapping[str, Any]) -> str:
    shares = " / ".join(f"{cell['added_ns'][kind] / cell['executed_ns']:.1%}" for kind in ("predicted", "executed"))
    error = None if cell["policy"] in STAYS else added_error(cell)
    return shares if error is None else f"{shares} ({error:+.0%})"
