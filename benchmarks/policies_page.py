"""docs/policies.md and docs/policies.json from a run of benchmarks/policies.py:

`python benchmarks/policies.py --json > build/policies.txt; python -m benchmarks.policies_page build/policies.txt`

Several runs, of some traces or policies each, make one page. Cells of an earlier page are kept where its JSON is named
first: a cell that ran again takes the place of the one that an earlier commit made, and the page says which cells are
of which commit.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import traces
from benchmarks._page_parts import table
from benchmarks.policies import MACHINES, summary

DOCS = Path(__file__).parents[1] / "docs"
_HEAD = """# Policies side by side

Simulated, on {when}, by `benchmarks/policies.py` (numpy {numpy}, Python {python}); the numbers are in
[policies.json](policies.json). The traces are full training steps of {n} models under fake tensors:
{names}.
The machines are described ones of `sentinel/machines/`: 24 cores with 1.5 TFLOP/s together, DRAM as fast memory and
migration at 5 GB/s (`-m5`) or 2 GB/s (`-m2`) each way; on those called `-priced` moves take time from compute.
{commits}*Share of the bound*: the least time that a plan of this kind
can take (`planner/lower_bound.py`) over the plan's own; 1 is perfect. *Of this kind*: it obeys the model's laws, so
that bytes that move hold room on both sides for whole layers; a plan that moves page by page within a layer could be
faster.
*Exchange bound*: the least time of plans that hold room on one side of a move only: what such a runtime could reach at
most. A bound that is not called loose is at most 0.005 below what the relaxation allows, most are within 0.0001
(decision 0069). *Of fast-only speed*: the speed as a share of that with everything in fast memory. Percentages are
fast memory as a share of the step's footprint.
Means are over the paper's families: {paper}.

**What moving costs.** Everywhere it takes time on the link. On the `-priced` machines whoever copies also has one of
the 24 cores for as long as that takes, and each migration takes 42 µs of the training thread
([decision 181](decisions/0181-half-the-links-alone-and-priced-machines.md) has the sources). On all others it takes
nothing from compute, so these figures favour policies that migrate, ours among them. Nowhere does a move slow the
memory that it reads and writes. 2 GB/s is what one mover reaches in pages of 4 KiB, 5 GB/s in pages of 2 MiB
([decision 126](decisions/0126-links-no-faster-than-memory.md)).

`sentinel-2021` is our reading of the paper's policy, `autotm` an integer program in AutoTM's manner whose search ends
after {search},
`best-static` the best placement found that moves nothing. {less}{missing}
"""

GOAL_SHARE, GOAL_FAST = 0.99, ("10%", "20%", "40%", "60%")
"""Of the bound, in the mean of the paper's families on each machine with each of these amounts."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="what each run printed; its last line is the JSON")
    runs = [_run(path) for path in parser.parse_args(arguments).runs]
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in (cell for run in runs for cell in run["cells"]):
        place = cell["trace"], cell["machine"], cell["fast"]
        cells[place] = merged(cells.get(place, {}), cell)
    when = ", ".join(sorted({day for run in runs for day in run["when"].split(", ")}))
    order = [*MACHINES, *traces.NAMES, *(cell[key] for cell in cells.values() for key in ("machine", "trace"))]
    told = summary(sorted(cells.values(), key=lambda cell: (order.index(cell["machine"]), order.index(cell["trace"]))))
    told |= {"when": when, "versions": runs[-1]["versions"]}
    (DOCS / "policies.json").write_text(_compact(told))
    (DOCS / "policies.md").write_text("\n".join(_page(told)))


def _run(path: Path) -> dict[str, Any]:
    """What a run printed, or the JSON of an earlier page."""
    text = path.read_text()
    return dict(json.loads(text if path.suffix == ".json" else text.splitlines()[-1]))


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A cell with the policies of both; the later one alone where they are of different commits."""
    if one.get("commit") != other.get("commit"):
        return other
    by_policy = {key: {**one[key], **other[key]} for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **by_policy}


def _compact(told: dict[str, Any]) -> str:
    """One line a cell."""
    rest = json.dumps({key: value for key, value in told.items() if key != "cells"}, indent=1)
    cells = ",\n".join(json.dumps(cell) for cell in told["cells"])
    return f'{rest[:-2]},\n "cells": [\n{cells}\n]}}\n'


def _page(told: dict[str, Any]) -> Iterator[str]:
    cells = told["cells"]
    names = list(dict.fromkeys(cell["trace"] for cell in cells))
    yield _HEAD.format(
        when=told["when"],
        numpy=told["versions"]["numpy"],
        python=told["versions"]["python"],
        n=len(names),
        names=", ".join(names),
        paper=", ".join(traces.PAPER),
        search=_search(cells),
        missing=_missing(cells),
        commits=_commits(cells),
        less=_less(cells),
    )
    yield from _goal(told)
    yield from _behind(told)
    yield from _forgiving(told)
    yield from _exchanging(cells)
    yield from _effort(cells)
    for machine in told["mean_of_bound"]:
        yield f"\n## {machine}\n"
        yield from _means(told, machine)
        yield from _by_trace([cell for cell in cells if cell["machine"] == machine])


_GIVEN_TIME = """ (given 60 s and more timelines it was up to 11 % faster in 8 cells:
[decision 160](decisions/0160-a-search-has-seconds-and-tells-its-gap.md))"""
"""What is not known of cells whose searches had no seconds."""


_FIRST = "46bf8fa"
"""The commit of cells that do not tell theirs. Its plans were not held to half the links alone, and it used no plan for
less fast memory again."""


def _commits(cells: Sequence[dict[str, Any]]) -> str:
    """Which cells are of which commit; nothing where all are of one."""
    by_commit: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        by_commit.setdefault(cell.get("commit", _FIRST), {}).setdefault(cell["machine"], []).append(cell)
    if len(by_commit) < 2:
        return ""
    parts = []
    for commit, by_machine in by_commit.items():
        told = []
        for machine, found in by_machine.items():
            whole = len(found) == sum(cell["machine"] == machine for cell in cells)
            told.append(machine if whole else f"{machine} ({'; '.join(_places(found))})")
        parts.append(f"of commit {commit} those on {', '.join(told)}")
    note = ""
    if _FIRST in by_commit:
        note = (
            f" Plans of {_FIRST} were not held to half the links alone, its `sentinel-2021` evicted eagerly and tried a"
            " sample of interval lengths, and its searches of `autotm` ended after 50 nodes."
        )
    return textwrap.fill(f"Cells are of several commits: {'; '.join(parts)}.{note}", 120, break_on_hyphens=False) + "\n"


def _places(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Traces with their amounts of fast memory, those with the same amounts together."""
    by_trace: dict[str, list[str]] = {}
    for cell in cells:
        by_trace.setdefault(cell["trace"], []).append(cell["fast"])
    by_amounts: dict[str, list[str]] = {}
    for trace, amounts in by_trace.items():
        by_amounts.setdefault(", ".join(amounts), []).append(trace)
    for told, names in by_amounts.items():
        yield f"{', '.join(names)} with {told}"


def _less(cells: Sequence[dict[str, Any]]) -> str:
    """What is done where a policy is slower with more fast memory."""
    if all("commit" in cell for cell in cells):
        return (
            "Where a policy is slower with more fast memory than with less, its plan for less is used again, of\nall.\n"
        )
    again = sum(len(cell.get("plans_of_less", ())) for cell in cells)
    return (
        "A policy can be slower with more fast memory than with\nless: then its plan for less is used again, of all"
        f" ({again} times), but not in cells of {_FIRST}.\n"
    )


def _search(cells: Sequence[dict[str, Any]]) -> str:
    """When searches for plans end, and with which gaps."""
    found = [(search, cell) for cell in cells for search in cell.get("search", {}).values()]
    if not found:
        return "50 nodes" + _GIVEN_TIME
    limits = sorted({search["limit_s"] for search, _ in found}, key=lambda limit: limit or 0)
    ends = " or ".join("50 nodes" if limit is None else f"{limit:g} s" for limit in limits)
    most, cell = max(((search["gap"], cell) for search, cell in found), key=lambda each: each[0])
    mean = fmean(search["gap"] for search, _ in found)
    where = f"{cell['trace']} on {cell['machine']} with {cell['fast']}"
    if any("search" not in each and "autotm" in each["of_bound"] for each in cells):
        ends = f"{ends} (50 nodes in cells of {_FIRST})"
    return f"{ends}, with a gap to the best of its program of {mean:.1%} in the mean and at most {most:.1%} ({where})"


def _missing(cells: Sequence[dict[str, Any]]) -> str:
    """Which cells of the traces, machines and amounts were not run."""
    traces_, machines, fast = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("trace", "machine", "fast"))
    ran = {(cell["trace"], cell["machine"], cell["fast"]) for cell in cells}
    by_amounts: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name in traces_:
        for machine in machines:
            amounts = tuple(each for each in fast if (name, machine, each) not in ran)
            if amounts:
                by_amounts.setdefault(amounts, {}).setdefault(name, []).append(machine)
    nowhere = [name for name in traces.NAMES if name not in traces_]
    told = [f"{', '.join(nowhere)} on any"] if nowhere else []
    unused = [machine for machine in MACHINES if machine not in machines]
    told += [f"any model on {', '.join(unused)}"] if unused else []
    for amounts, by_trace in by_amounts.items():
        on: dict[tuple[str, ...], list[str]] = {}
        for name, where in by_trace.items():
            on.setdefault(tuple(where), []).append(name)
        of = "" if len(amounts) == len(fast) else f" with {', '.join(amounts)}"
        told += [f"{', '.join(names)} on {', '.join(where)}{of}" for where, names in on.items()]
    return f"Not run, for time:\n{'; '.join(told)}." if told else ""


def _goal(told: dict[str, Any]) -> Iterator[str]:
    """Whether plans come as near to the bound as they are to; nothing without those amounts of fast memory."""
    shares = {
        (machine, fast): by_policy["sentinel"][fast]
        for machine, by_policy in told["mean_of_bound"].items()
        for fast in GOAL_FAST
        if fast in by_policy.get("sentinel", {})
    }
    if not shares:
        return
    (machine, fast), least = min(shares.items(), key=lambda cell: cell[1])
    met = "met" if least >= GOAL_SHARE else "**missed**"
    yield f"Goal: `sentinel` has at least {GOAL_SHARE:g} of the bound in the mean of the paper's families, on each"
    amounts = ", ".join(dict.fromkeys(fast for _, fast in shares))
    yield f"machine with {amounts} fast: {met}; least {least:.4f} ({machine}, {fast}).\n"
    missed = [place for place, share in shares.items() if share < GOAL_SHARE]
    if missed:
        yield from _missed(told, missed)


def _missed(told: dict[str, Any], places: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Where the goal is missed, by which trace most, and what the rule of forgiving plans costs there."""
    yield "Missed where the mean is below it. *Unforgiving*: the same mean if plans were not held to what they take on"
    yield "worse machines.\n"
    rows = []
    for machine, fast in places:
        cells = [
            c for c in told["cells"] if (c["machine"], c["fast"]) == (machine, fast) and c["trace"] in traces.PAPER
        ]
        worst = min(cells, key=lambda cell: float(cell["of_bound"]["sentinel"]))
        freely = [max(c["of_bound"]["sentinel"], c.get("unforgiving_of_bound", 0.0)) for c in cells]
        share = told["mean_of_bound"][machine]["sentinel"][fast]
        known = all("commit" in cell for cell in cells)
        unforgiving = f"{fmean(freely):.4f}" if known else ""
        rows.append(
            (machine, fast, f"{share:.4f}", f"{worst['trace']} {worst['of_bound']['sentinel']:.3f}", unforgiving)
        )
    yield from table(("machine", "fast", "mean", "least", "unforgiving"), rows)
    yield ""


def _exchanging(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What a runtime could gain at most that exchanges pages within a layer; nothing where that is not known."""
    known = [cell for cell in cells if cell.get("exchange_ns")]
    if not known:
        return
    yield "\nThe exchange bound is below the bound by what exchanging pages within a layer could bring at most, as a"
    yield "share of the step, in cells in which both are tight:\n"
    rows = []
    for name in dict.fromkeys(cell["trace"] for cell in known):
        gains = [(1 - c["exchange_ns"] / c["bound_ns"], c) for c in known if c["trace"] == name]
        most, cell = max(gains, key=lambda gain: gain[0])
        mean = fmean(gain for gain, _ in gains)
        rows.append((name, f"{len(gains)}", f"{mean:.2%}", f"{most:.1%} ({cell['machine']}, {cell['fast']})"))
    yield from table(("trace", "cells", "mean", "most"), rows)


def _behind(told: dict[str, Any]) -> Iterator[str]:
    rows = told["sentinel_behind"]
    n = len(told["cells"])
    if not rows:
        yield f"In none of the {n} cells is a rival more than 0.5 % faster than `sentinel`."
        return
    yield f"In {len(rows)} of {n} cells times rivals a rival is more than 0.5 % faster than `sentinel`:\n"
    yield from table(
        ("trace", "machine", "fast", "rival", "faster by"),
        [(r["trace"], r["machine"], r["fast"], r["rival"], f"{r['by'] - 1:.1%}") for r in rows],
    )


def _forgiving(told: dict[str, Any]) -> Iterator[str]:
    """What a worse machine makes of the plans; nothing where that was not tried."""
    cells = [cell for cell in told["cells"] if {"sentinel", "best-static"} <= cell.get("worse_ns", {}).keys()]
    if not cells:
        return
    rows = told["spoilt_by_a_worse_machine"]
    half = [cell for cell in cells if {"sentinel", "best-static"} <= cell.get("half_links_ns", {}).keys()]
    yield "\nWith these plans on a machine whose links carry half and whose slow memory takes 1.5 times as long,"
    if half:
        yield f"and where links alone carry half (tried in {len(half)} of {len(cells)} cells),"
    if not rows:
        yield "`sentinel` is nowhere more than 3 % slower than `best-static`, and as described nowhere more than 0.5 %."
        return
    yield f"`sentinel` is in {len(rows)} of {len(cells)} cells more than 3 % slower than `best-static`, or more than"
    yield "0.5 % as described:\n"
    names = ("worse", "half_links", "described")
    shown = [(r["trace"], r["machine"], r["fast"], *(f"{r[n]:.3f}" if n in r else "" for n in names)) for r in rows]
    yield from table(("trace", "machine", "fast", "worse: times best-static", "half the links", "as described"), shown)


def _effort(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Processor time of the default policy's plans, and which bounds are loose."""
    spent = sorted((cell["plan_cpu_s"]["sentinel"], cell["trace"]) for cell in cells)
    middle, (most, trace) = spent[len(spent) // 2][0], spent[-1]
    yield f"\nA plan of `sentinel` takes {middle:.1f} s of processor time (median), at most {most:.1f} s ({trace})."
    loose = sum(bool(cell["loose"]) for cell in cells)
    yield f"{loose} of {len(cells)} bounds are loose." if loose else "No bound is loose."


def _means(told: dict[str, Any], machine: str) -> Iterator[str]:
    """Mean share of the bound, the worst trace, and the mean of fast-only speed, a row a policy."""
    shares, worst = told["mean_of_bound"][machine], told["worst_of_bound"][machine]
    fast = list(dict.fromkeys(f for by_fast in shares.values() for f in by_fast))
    rows = []
    for policy, by_fast in shares.items():
        least = min(worst[policy].values(), key=lambda w: float(w["share"]), default={"share": 0.0, "trace": "loose"})
        of_speed = told["mean_fraction"][machine][policy]
        means = [f"{by_fast[f]:.3f}" if f in by_fast else "" for f in fast]
        speeds = [f"{of_speed[f]:.3f}" if f in of_speed else "" for f in fast]
        rows.append((policy, *means, f"{least['share']:.3f} ({least['trace']})", *speeds))
    heads = ("policy", *(f"of bound, {f}" for f in fast), "worst of all traces", *(f"of fast-only, {f}" for f in fast))
    yield from table(heads, rows)
    yield from _roadmap(told, machine, fast)
    some = [policy for policy in shares if len(shares[policy]) < len(fast) or policy == "autotm"]
    if some:
        yield f"\n`{'`, `'.join(some)}`: only for small steps; means over the families that it accepts."


def _roadmap(told: dict[str, Any], machine: str, fast: Sequence[str]) -> Iterator[str]:
    """What is left to the exchange bound, and what is held in the mean; nothing where that was not found."""
    shares = told.get("mean_of_exchange_bound", {}).get(machine, {}).get("sentinel", {})
    if shares:
        words = ", ".join(f"{shares[f]:.3f} with {f}" for f in fast if f in shares)
        yield f"\nOf the exchange bound `sentinel` has {words}."
    held = told.get("mean_held", {}).get(machine, {})
    if held:
        yield "\nFast memory held in the mean over the step, as a share of what there is:\n"
        rows = [(p, *(f"{by_fast[f]:.3f}" if f in by_fast else "" for f in fast)) for p, by_fast in held.items()]
        yield from table(("policy", *fast), rows)


def _by_trace(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Share of the bound of `sentinel`, and the best rival's, by trace."""
    fast = list(dict.fromkeys(cell["fast"] for cell in cells))
    rows = []
    for name in dict.fromkeys(cell["trace"] for cell in cells):
        row, by_fast = [name], {cell["fast"]: cell for cell in cells if cell["trace"] == name}
        for share in fast:
            row.append(_against_best(by_fast[share]) if share in by_fast else "")
        rows.append(tuple(row))
    yield "\n`sentinel`, and the best rival, as shares of the bound (loose: of the time with all in fast memory):\n"
    yield from table(("trace", *fast), rows)


def _against_best(cell: dict[str, Any]) -> str:
    rivals = {policy: share for policy, share in cell["of_bound"].items() if policy != "sentinel"}
    best = max(rivals, key=lambda policy: rivals[policy])
    loose = " (loose)" if cell["loose"] else ""
    return f"{cell['of_bound']['sentinel']:.3f}{loose}; {best} {rivals[best]:.3f}"


if __name__ == "__main__":
    main()
