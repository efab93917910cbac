"""Claim: at equal fast memory, ours serves more of the touched bytes from it than any placement the kernel offers.
What that costs in bytes over the slow link is told beside it (benchmarks/two_nodes_page.py).

Four examples train in the emulated two-node machine (tools/numa_vm, kernel 6.12), once per placement, with 20 % of the
footprint as fast memory. They are planned for a described machine, which is kept beside the results. The emulated
machine computes some hundred times slower than the host, so the plan is made here, from a step profiled here,
and applied there.

    python -m benchmarks.two_nodes                            all four, then docs/two-nodes.md; minutes each
    python -m benchmarks.two_nodes --examples 03_lstm         one of them anew
    python -m benchmarks.two_nodes --table                    only the page, from the results that are there
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks.two_nodes_page import page
from sentinel import machines
from sentinel.core.machine import Machine
from sentinel.files import save

EXAMPLES = ("01_gpt2", "02_resnet", "03_lstm", "04_dlrm")
FOLDER = _bench.ROOT / "docs" / "two-nodes"
PAGE = _bench.ROOT / "docs" / "two-nodes.md"
MACHINE, PLANNED_FOR = FOLDER / "machine.json", "cxl-m2"
FAST = "20%"
WARM_UP, MEASURED = 8, 1
"""The kernel's tiering learns while a job runs; the last step of the warm-up is audited."""
STEPS = 2 + WARM_UP + MEASURED + 4
"""One creates the optimizer's state, one is profiled or tried, one closes the ring; a plan that takes over, or a step
of another shape, may cost up to three more."""
RESERVE_KIB = 4096
"""Of the whole machine: else the watermarks of its small nodes lie further apart than the examples' budgets."""


def planned(example: str, plan: Path, machine: Path) -> None:
    """A plan for the machine in that file, from a step profiled on this host."""
    _run(
        *(sys.executable, "-m", "sentinel", "run", "--fast", FAST, "--slow", "emulated:cxl-asic-x8"),
        *("--machine", str(machine), "--save-plan", str(plan), "--report", str(plan.with_suffix(".txt"))),
        *(f"examples/{example}.py", "--scale", "small", "--steps", "4"),
    )


def executed(example: str, plan: Path, machine: Path, *, memory: str, timeout_s: float) -> dict[str, Any]:
    """What `sentinel compare --executed` says in the emulated machine. `machine` lies beside the plan: that folder is
    shared with it."""
    told = _run(
        *("tools/numa_vm/run", "--memory", memory, "--timeout", f"{timeout_s:g}", "--share", str(plan.parent), "--"),
        *("sh", "-c", f'echo {RESERVE_KIB} >/proc/sys/vm/min_free_kbytes && exec "$@"', "sh"),
        *(sys.executable, "-m", "sentinel", "compare", "--slow", "numa:1", "--fast", FAST, "--json"),
        *("--machine", str(machine), "--plan", str(plan)),
        *("--warm-up", str(WARM_UP), "--measure", str(MEASURED)),
        *("--executed", f"examples/{example}.py", "--scale", "small", "--steps", str(STEPS)),
    )
    found: dict[str, Any] = json.loads(told)
    found["when"] = time.strftime("%Y-%m-%d", time.gmtime())
    found["versions"] = _bench.versions()
    return found


def _require_one_machine(machine: Machine, *, all_anew: bool) -> None:
    """SystemExit where some results would be of plans for this machine, and others for another."""
    text = json.loads(MACHINE.read_text())["machine"]["name"] if MACHINE.exists() else machine.name
    if text != machine.name and not all_anew:
        raise SystemExit(f"the results are of plans for {text}, not {machine.name}: run all examples")


def _run(*command: str) -> str:
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(
        command,
        cwd=_bench.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=EXAMPLES)
    parser.add_argument("--memory", default="1G,1G", help="of the two nodes (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for each example (default %(default)s)")
    parser.add_argument("--table", action="store_true", help="run nothing, write the page only")
    chosen = parser.parse_args(arguments)
    described = machines.load(PLANNED_FOR)
    if not chosen.table:
        _require_one_machine(described, all_anew=set(chosen.examples) == set(EXAMPLES))
    for example in () if chosen.table else chosen.examples:
        with tempfile.TemporaryDirectory() as folder:
            plan, machine = Path(folder) / f"{example}.json", Path(folder) / MACHINE.name
            save(described, machine)
            planned(example, plan, machine)
            found = executed(example, plan, machine, memory=chosen.memory, timeout_s=chosen.timeout)
        save(described, MACHINE)  # with the first result: what failed before leaves the one that the results are of
        (FOLDER / f"{example}.json").write_text(json.dumps(found, indent=1) + "\n")
    known = {name: FOLDER / f"{name}.json" for name in EXAMPLES}
    results = {name: json.loads(path.read_text()) for name, path in known.items() if path.exists()}
    if results:
        PAGE.write_text(page(results, MACHINE.read_text()))
    _bench.emit("ours serves more from fast memory than any placement of the kernel", {"fast": FAST}, results)


if __name__ == "__main__":
    main()
