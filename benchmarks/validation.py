"""Claim: the simulator predicts the executed step within 3 % in the mean of examples and policies, within 8 % at worst.

Each example trains with each policy in a fresh process on an emulated tier, whose delays are injected and whose work is
real. The prediction is made with the layer times of the first applied steps (stalls and delays taken off), so those
steps are not judged: it is held against the median of the later ones. Since most of a step is compute, whose time the
prediction was given, the time added by slow accesses and stalls is told beside it, predicted and executed.
`all-fast` moves nothing and gets all the memory it needs: its error is that of repeating a step, no model in it.

    python -m benchmarks.validation --examples 01_gpt2 --policies sentinel > build/validation.json
    python -m benchmarks.validation --into docs/validation.json --seconds 280

Keep the host idle. With `--into` cells that the file has are not run again, so that a long table can be made in
several sittings, unless others used the processors meanwhile; the page with the table is written beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks.validation_page import page
from sentinel.cli.common import INFEASIBLE
from sentinel.planner import POLICIES

EXAMPLES = tuple(sorted(path.stem for path in (_bench.ROOT / "examples").glob("0*.py")))
CONTROL = "all-fast"
NOT_JUDGED = 19
"""Steps: one creates the optimizer's state, one is profiled, sixteen give the layer times, one is under way by then."""

DISTURBED = 0.1
"""A cell is run again if others, the hypervisor included, took more than this share of the processors meanwhile."""


KEPT = 64
"""Last steps that a run keeps in detail, behind its first ones."""
CLAIM = (__doc__ or "").partition("\n")[0].removeprefix("Claim: ")


def judged(report: dict[str, Any], steps: int) -> dict[str, Any]:
    """Predicted and executed step of a JSON report of a run of `steps` steps; SystemExit if none can be judged."""
    headline = report["headline"]
    if headline["kind"] not in ("emulated", "executed") or not headline["step_ns_predicted"]:
        raise SystemExit(f"{report['script']}: nothing was executed, the report is {headline['kind']}")
    table = report["frames"]["steps"]
    rows = list(zip(table["duration_ns"], table["in_step"], strict=True))
    times = [duration for duration, in_step in rows[-min(steps - NOT_JUDGED, KEPT) :] if in_step]
    if not times:
        raise SystemExit(f"{report['script']}: no later step ran as planned; --steps gives it more")
    predicted, executed, plain = headline["step_ns_predicted"], statistics.median(times), headline["step_ns_plain"]
    return {
        "kind": headline["kind"],
        "predicted_ns": predicted,
        "executed_ns": executed,
        "executed_steps_ns": times,
        "error": predicted / executed - 1,
        "added_ns": {"predicted": predicted - plain, "executed": executed - plain},
        "migrated_bytes_per_step": headline["migrated_bytes_per_step"],
        "planned_anew": any("planned anew" in caveat.lower() for caveat in report["caveats"]),
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


def execute(example: str, policy: str, fast: str, slow: str, steps: int, threads: int) -> dict[str, Any] | str:
    """The JSON report of one example in a fresh process, or the sentence with which the policy was refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        where = ["--slow", slow, "--fast", fast, "--policy", policy, "--report", str(path)]
        script = [str(_bench.ROOT / "examples" / f"{example}.py"), "--steps", str(steps)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "sentinel", "run", *where, *script]
        done = subprocess.run(command, cwd=_bench.ROOT, capture_output=True, text=True, env=environment, check=False)
        if done.returncode == INFEASIBLE:
            said = [line for line in done.stderr.splitlines() if line.startswith("sentinel: ")]
            return said[0].removeprefix("sentinel: ")
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


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
    load, began, busy_s = os.getloadavg()[0], time.monotonic(), _bench.others_s()
    report = execute(order["example"], order["policy"], order["fast"], given.slow, given.steps, given.threads)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    took_s = time.monotonic() - began
    others = round((_bench.others_s() - busy_s) / (took_s * len(os.sched_getaffinity(0))), 3)
    took = {"when": when, "load_before": load, "took_s": round(took_s, 1), "others_share": others}
    found = {"refused": report} if isinstance(report, str) else judged(report, given.steps)
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
            given.into.write_text(json.dumps(told, indent=1) + "\n")
            given.into.with_suffix(".md").write_text(page(told))
    _bench.emit(CLAIM, settings, summary(list(cells.values())))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--fast", default="20%", help="fast memory (default 20%%)")
    parser.add_argument("--slow", default="emulated:cxl-asic-x8", help="the tier (default %(default)s)")
    parser.add_argument("--steps", type=int, default=28, help=f"the first {NOT_JUDGED} are not judged (default 28)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--into", type=Path, metavar="FILE", help="keep the cells here, and write the page beside it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so long")
    given = parser.parse_args()
    if given.steps <= NOT_JUDGED:
        parser.error(f"--steps {given.steps}: must be above {NOT_JUDGED}")
    return given


if __name__ == "__main__":
    main()
