"""Claim: the simulator predicts the executed step within 3 % in the mean of examples and policies, within 8 % at worst.

Each example trains with each policy in a fresh process on an emulated tier: copies are real, delays of slow accesses
are injected. This tests scheduling only, with layer times of the run that is judged; what is predicted before anything
runs is judged by benchmarks/blind_validation.py. Of the later steps every second one gives the layer times (stalls and
delays taken off), with which the plan is simulated; the steps between them are what it is held against; then the other
way round, and the error is the mean of both. So a host that is faster in one second than in the next, which no
simulator can know, is no part of it; the error of what the session itself predicted, ahead of these steps, is told
beside it and has that too. `all-fast` moves nothing and gets all the memory it needs: its error is that of repeating a
step, no model in it.

With `--tiers 3` there is a middle tier of three tenths of each example's footprint, and what each tier held in each
layer is held against what it has and what was planned.

    python -m benchmarks.validation --examples 01_gpt2 --policies sentinel > build/validation.json
    python -m benchmarks.validation --into docs/validation.json --seconds 280
    python -m benchmarks.validation --tiers 3 --into docs/validation-three-tiers.json

Keep the host idle. With `--into` cells that the file has are not run again, so that a long table can be made in
several sittings, unless others used the processors meanwhile; the page with the table is written beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench, blind_validation_page
from benchmarks.validation_page import page
from sentinel.planner import POLICIES

EXAMPLES = tuple(sorted(path.stem for path in (_bench.ROOT / "examples").glob("0[1-6]*.py")))
CONTROL = "all-fast"
TABLE = _bench.ROOT / "docs" / "validation.json"
"""Stands on a page with what was predicted before it was executed."""
MIDDLE = {
    "01_gpt2": "156MiB",
    "02_resnet": "66MiB",
    "03_lstm": "57MiB",
    "04_dlrm": "67MiB",
    "05_dcgan": "22MiB",
    "06_mobilenet": "43MiB",
}
"""What the middle one of three tiers has: three tenths of what the example holds at its peak."""
SLOW = {2: "emulated:cxl-asic-x8", 3: "emulated:cxl-asic-x8={middle}+cxl-worst"}
"""The slower tiers of a machine of so many; `{middle}` is of the example."""
OF_THREE = ("sentinel", "sentinel-2021", "next-use")
"""Policies by default where there are three tiers: they migrate; others say nothing of the simulator."""
NOT_JUDGED = 8
"""Steps: one creates the optimizer's state, one is profiled, and the plan is made again after four; two more settle."""

DISTURBED = 0.4
"""A cell is run again if others, the hypervisor included, took more than this share of the processors meanwhile."""


CLAIM = (__doc__ or "").partition("\n")[0].removeprefix("Claim: ")


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """A cell of what `benchmarks._validated_run` told; SystemExit if nothing was emulated."""
    if not found["emulated"]:
        raise SystemExit("nothing was executed on an emulated tier: name one with --slow")
    executed = statistics.median(found["executed_steps_ns"])
    halves = found["halves"]
    errors = [half["predicted_ns"] / half["executed_ns"] - 1 for half in halves]
    added = {
        kind: statistics.fmean(half[f"{kind}_ns"] - half["plain_ns"] for half in halves)
        for kind in ("predicted", "executed")
    }
    return {
        **found,
        "executed_ns": executed,
        "error": statistics.fmean(errors),
        "error_ahead": None if found["ahead_ns"] is None else found["ahead_ns"] / executed - 1,
        "added_ns": added,
    }


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst of the errors' sizes, and whether they keep the claim; what was not executed says why."""
    errors = {name: abs(cell["error"]) for cell in cells if "error" in cell for name in [_name(cell)]}
    if not errors:
        return {"mean_error": None, "worst_error": None, "worst_cell": None, "holds": False, "cells": list(cells)}
    worst = max(errors, key=lambda name: errors[name])
    mean = statistics.fmean(errors.values())
    holds = mean <= 0.03 and errors[worst] <= 0.08
    return {
        "mean_error": mean,
        "worst_error": errors[worst],
        "worst_cell": worst,
        "holds": holds,
        "cells": list(cells),
    }


def _name(cell: dict[str, Any]) -> str:
    return f"{cell.get('example')} {cell.get('policy')} {cell.get('fast')}"


def execute(order: dict[str, str], slow: str, steps: int, threads: int) -> dict[str, Any]:
    """What one example told in a fresh process."""
    slow = slow.format(middle=MIDDLE[order["example"]])
    words = [f"--{name}={value}" for name, value in {**order, "slow": slow, "steps": steps}.items()]
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return _bench.child("benchmarks._validated_run", [*words, f"--judged={steps - NOT_JUDGED}"], environment)


def orders(policies: Sequence[str], examples: Sequence[str], fast: str) -> list[dict[str, str]]:
    """The cells to run, policy by policy. The control gets all the memory it needs, and is refused less of it once."""
    found = []
    for policy in policies:
        share = "100%" if policy == CONTROL else fast
        found += [{"example": example, "policy": policy, "fast": share} for example in examples]
        if share != fast:
            found.append({"example": examples[0], "policy": policy, "fast": fast})
    return found


def run(order: dict[str, str], given: argparse.Namespace) -> dict[str, Any]:
    """One cell, executed and judged, or with the reason why not."""
    load, began, had = os.getloadavg()[0], time.monotonic(), _bench.others_share()
    told = execute(order, given.slow, given.steps, given.threads)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    took_s = time.monotonic() - began
    others = had()
    took = {"when": when, "load_before": load, "took_s": round(took_s, 1), "others_share": others}
    found = told if "refused" in told else judged(told)
    said = f"{found['error']:+.1%}" if "error" in found else f"refused: {found['refused']}"
    print(f"{_name(order)}: {said} ({took_s:.0f} s, others {others:.0%})", file=sys.stderr, flush=True)
    return {**order, **found, **took}


def known(path: Path | None, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The cells that a file of an earlier sitting has; SystemExit if they were made otherwise."""
    if path is None or not path.exists():
        return {}
    before = json.loads(path.read_text())
    otherwise = [f"{name} {before.get(name)}" for name, value in settings.items() if before.get(name) != value]
    if otherwise:
        raise SystemExit(f"{path} was made with {', '.join(otherwise)}: remove it, or ask for the same")
    return {_name(cell): cell for cell in before["results"]["cells"]}


def main() -> None:
    """Run what is asked for, and print one JSON object."""
    given = _given()
    settings = {"slow": given.slow, "steps": given.steps, "threads": given.threads}
    cells = known(given.into, settings)
    began = time.monotonic()
    for order in orders(given.policies, given.examples, given.fast):
        if _name(order) in cells and cells[_name(order)]["others_share"] <= DISTURBED:
            continue
        if time.monotonic() - began > given.seconds:
            print("time is up: call it again for the rest", file=sys.stderr)
            break
        cells[_name(order)] = run(order, given)
        if given.into is not None:
            told = _bench.told(CLAIM, settings, summary(list(cells.values())))
            given.into = given.into.resolve()
            given.into.write_text(json.dumps(told, indent=1) + "\n")
            text = blind_validation_page.made(given.into.parent) if given.into == TABLE else page(told, given.into.stem)
            given.into.with_suffix(".md").write_text(text)
    _bench.emit(CLAIM, settings, summary(list(cells.values())))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), help="all; of three tiers those that migrate")
    parser.add_argument("--tiers", type=int, choices=list(SLOW), default=2, help="of the emulated machine (default 2)")
    parser.add_argument("--fast", default="20%", help="fast memory (default 20%%)")
    parser.add_argument(
        "--slow", help=f"the slower tiers, {{middle}} being the example's (default {' or '.join(SLOW.values())})"
    )
    parser.add_argument("--steps", type=int, default=24, help=f"the first {NOT_JUDGED} are not judged (default 24)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--into", type=Path, metavar="FILE", help="keep the cells here, and write the page beside it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so long")
    given = parser.parse_args()
    if given.steps <= NOT_JUDGED:
        parser.error(f"--steps {given.steps}: must be above {NOT_JUDGED}")
    given.slow = given.slow or SLOW[given.tiers]
    given.policies = given.policies or (OF_THREE if given.tiers > 2 else list(POLICIES))
    return given


if __name__ == "__main__":
    main()
