"""Claim: the simulator predicts the executed step within 3 % in the mean of the examples, within 8 % in the worst.

Each example trains in a fresh process on an emulated tier, whose delays are injected and whose work is real. The
prediction is made with the layer times of the first applied steps (stalls and delays taken off), so those steps are not
judged: it is held against the median of the later ones. Since most of a step is compute, whose time the prediction was
given, the time added by slow accesses and stalls is told beside it, predicted and executed. Keep the host idle.

    python -m benchmarks.validation --examples 01_gpt2 --steps 20 > validation.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench

EXAMPLES = tuple(sorted(path.stem for path in (_bench.ROOT / "examples").glob("0*.py")))
NOT_JUDGED = 7
"""Steps: one creates the optimizer's state, one is profiled, four give the layer times, one may switch plans."""

KEPT = 64
"""Last steps that a run keeps in detail, behind its first ones."""


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
        "executed_least_ns": min(times),
        "executed_most_ns": max(times),
        "error": predicted / executed - 1,
        "added_ns": {"predicted": predicted - plain, "executed": executed - plain},
        "judged_steps": len(times),
        "planned_anew": any("planned anew" in caveat.lower() for caveat in report["caveats"]),
    }


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst of the errors' sizes, and whether they keep the claim."""
    errors = [abs(cell["error"]) for cell in cells]
    mean, worst = statistics.fmean(errors), max(errors)
    return {"mean_error": mean, "worst_error": worst, "holds": mean <= 0.03 and worst <= 0.08, "cells": list(cells)}


def execute(example: str, policy: str, fast: str, slow: str, steps: int, threads: int) -> dict[str, Any]:
    """The JSON report of one example in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        where = ["--slow", slow, "--fast", fast, "--policy", policy, "--report", str(path)]
        script = [str(_bench.ROOT / "examples" / f"{example}.py"), "--steps", str(steps)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "sentinel", "run", *where, *script]
        done = subprocess.run(command, cwd=_bench.ROOT, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def main() -> None:
    """Run every example with every policy, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--policies", nargs="+", default=["sentinel"])
    parser.add_argument("--fast", default="20%", help="fast memory (default 20%%)")
    parser.add_argument("--slow", default="emulated:cxl-asic-x8", help="the tier (default %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help=f"the first {NOT_JUDGED} are not judged (default 20)")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.steps <= NOT_JUDGED:
        parser.error(f"--steps {given.steps}: must be above {NOT_JUDGED}")
    cells = []
    for example in given.examples:
        for policy in given.policies:
            report = execute(example, policy, given.fast, given.slow, given.steps, given.threads)
            cells.append({"example": example, "policy": policy, **judged(report, given.steps)})
            print(f"{example} {policy}: {cells[-1]['error']:+.1%}", file=sys.stderr, flush=True)
    settings = {"fast": given.fast, "slow": given.slow, "steps": given.steps, "threads": given.threads}
    _bench.emit((__doc__ or "").partition("\n")[0].removeprefix("Claim: "), settings, summary(cells))


if __name__ == "__main__":
    main()
