"""Claim: at equal fast memory, ours serves more of the touched bytes from it than any placement the kernel offers.

Four examples train in the emulated two-node machine (tools/numa_vm, kernel 6.12), once per placement, with 20 % of the
footprint as fast memory. They are planned for the declared machine beside the results, on which migration pays: slow
enough that time and served share ask for the same plan. The emulated machine computes some hundred times slower than
the host, so the plan is made here, from a step profiled here, and applied there.

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

EXAMPLES = ("01_gpt2", "02_resnet", "03_lstm", "04_dlrm")
FOLDER = _bench.ROOT / "docs" / "two-nodes"
PAGE = _bench.ROOT / "docs" / "two-nodes.md"
MACHINE = FOLDER / "machine.json"
FAST = "20%"
WARM_UP, MEASURED = 8, 1
"""The kernel's tiering learns while a job runs; the last step of the warm-up is audited."""
STEPS = 2 + WARM_UP + MEASURED + 4
"""One creates the optimizer's state, one is profiled or tried, one closes the ring; a plan that takes over, or a step
of another shape, may cost up to three more."""
RESERVE_KIB = 4096
"""Of the whole machine: else the watermarks of its small nodes lie further apart than the examples' budgets."""
OURS, REFERENCES = "sentinel", ("all-fast", "all-slow")


def planned(example: str, plan: Path) -> None:
    """A plan for the declared machine, from a step profiled on this host."""
    _run(
        *(sys.executable, "-m", "sentinel", "run", "--fast", FAST, "--slow", "emulated:cxl-asic-x8"),
        *("--machine", str(MACHINE), "--save-plan", str(plan), "--report", str(plan.with_suffix(".txt"))),
        *(f"examples/{example}.py", "--scale", "small", "--steps", "4"),
    )


def executed(example: str, plan: Path, memory: str, timeout_s: float) -> dict[str, Any]:
    """What `sentinel compare --executed` says in the emulated machine."""
    told = _run(
        *("tools/numa_vm/run", "--memory", memory, "--timeout", f"{timeout_s:g}", "--share", str(plan.parent), "--"),
        *("sh", "-c", f'echo {RESERVE_KIB} >/proc/sys/vm/min_free_kbytes && exec "$@"', "sh"),
        *(sys.executable, "-m", "sentinel", "compare", "--slow", "numa:1", "--fast", FAST, "--json"),
        *("--machine", str(MACHINE.relative_to(_bench.ROOT)), "--plan", str(plan)),
        *("--warm-up", str(WARM_UP), "--measure", str(MEASURED)),
        *("--executed", f"examples/{example}.py", "--scale", "small", "--steps", str(STEPS)),
    )
    found: dict[str, Any] = json.loads(told)
    found["when"] = time.strftime("%Y-%m-%d", time.gmtime())
    found["versions"] = _bench.versions()
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    """docs/two-nodes.md of the results by example."""
    names = list(dict.fromkeys(row["name"] for found in results.values() for row in found["rows"]))
    shares = [["placement", *results], ["---", *("---:" for _ in results)]]
    shares += [[name, *(_cell(found, name) for found in results.values())] for name in names]
    dates = sorted({found["when"] for found in results.values()})
    kernels = sorted({found["where"]["kernel"] for found in results.values()})
    torches = sorted({found["where"]["torch"] for found in results.values()})
    lines = [
        "# Two nodes: ours against the kernel's placements",
        "",
        "**Emulated machine** (QEMU, in software): node 0 is fast, node 1 has no CPUs. Shares, pages, residency and",
        "bits are real; times mean nothing there, so none is shown. Every row of an example trains the same job in",
        "the same machine; every limited placement gets the same fast bytes, by pinned ballast on node 0 that grows",
        "and shrinks with what else takes or frees memory there while the job runs. The kernel's tiering gets besides",
        "what it keeps free for promotions. The kernel's own reserve is the same for all, and small. The runs are",
        "short, since steps are slow there; tiering learns while a job runs, and may do better in longer ones.",
        "",
        f"Made {', '.join(dates)} by `python -m benchmarks.two_nodes`: kernel {', '.join(kernels)}, torch",
        f"{', '.join(torches)}, {FAST} of the footprint fast, planned for [machine.json](two-nodes/machine.json).",
        "",
        "## Share of touched bytes served by fast memory",
        "",
        *("| " + " | ".join(row) + " |" for row in shares),
        "",
        *_mean(results),
        *(line for example, found in results.items() for line in _roomy(example, found)),
        "",
        "## What was proved",
        "",
        *(line for example, found in results.items() for line in _proof(example, found)),
        "",
        "## Fast bytes",
        "",
        "Ours has its budget for tensors. The others' room also holds what is no tensor, and the kernel may give any",
        "of it to tensors. A mean above the beginning: the ballast could not take at once what became free meanwhile.",
        "Both are to the others' advantage.",
        "",
        *(line for example, found in results.items() for line in _fast(example, found)),
        "",
        "What a share is and how the ballast is measured: [0043](decisions/0043-placements-are-measured-alike.md).",
        "Each example's JSON, with the pages that moved and by whose hand, lies in `docs/two-nodes/`.",
        "",
    ]
    return "\n".join(lines)


def _cell(found: dict[str, Any], name: str) -> str:
    row = next((row for row in found["rows"] if row["name"] == name), None)
    if row is None or row["served_share"] is None:
        return "skipped" if row else "-"
    best = max(
        other["served_share"] or 0
        for other in found["rows"]
        if other["name"] not in REFERENCES and not other["skipped"]
    )
    text = f"{row['served_share']:.1%}"
    return f"**{text}**" if row["served_share"] == best and name not in REFERENCES else text


def _mean(results: dict[str, dict[str, Any]]) -> list[str]:
    ours = [_share(found, OURS) for found in results.values()]
    known = [share for share in ours if share is not None]
    if not known:
        return []
    ahead = sum(share > max(_rivals(found), default=0) for found in results.values() if (share := _share(found, OURS)))
    missing = [name for name in EXAMPLES if name not in results]
    said = [f"Not measured yet: {', '.join(missing)}."] if missing else []
    return [f"Ours: {sum(known) / len(known):.1%} in the mean of {len(known)}; above every rival in {ahead}.", *said]


def _roomy(example: str, found: dict[str, Any]) -> list[str]:
    """Whom the room for what is no tensor suffices for all tensors: with time the kernel gives it to them."""
    footprint = next(row for row in found["rows"] if row["name"] == OURS)["ours"]["footprint_bytes"]
    names = [row["name"] for row in found["rows"] if (row["left_bytes"] or 0) >= footprint]
    return [f"In {example} {', '.join(names)} had room for the whole footprint, see below."] if names else []


def _rivals(found: dict[str, Any]) -> list[float]:
    names = [row["name"] for row in found["rows"] if row["name"] not in (OURS, *REFERENCES)]
    return [share for name in names if (share := _share(found, name)) is not None]


def _share(found: dict[str, Any], name: str) -> float | None:
    return next((row["served_share"] for row in found["rows"] if row["name"] == name), None)


def _proof(example: str, found: dict[str, Any]) -> list[str]:
    row = next(row for row in found["rows"] if row["name"] == OURS)
    ours = row["ours"]
    same = all(other["same_losses"] and other["same_parameters"] for other in found["rows"] if not other["skipped"])
    seen = ours["witness_pages"]
    agree = "no witness" if seen is None else f"{ours['claimed_pages']:,} by the engine, {seen:,} by the witness"
    share = ours["residency_share"]
    residency = "residency not audited" if share is None else f"after each layer {share:.2%} of managed bytes"
    bits = "bit-identical in all rows" if same else "**differ**"
    steps = f"{row['measured_steps']} measured of {found['script'].split()[-1]} steps"
    return [
        f"- {example}, {steps}: losses and parameters {bits};",
        f"  {residency}{' where the plan has them' if share is not None else ''}; pages moved: {agree}.",
    ]


def _fast(example: str, found: dict[str, Any]) -> list[str]:
    ours = next(row for row in found["rows"] if row["name"] == OURS)["ours"]
    peak = ours["managed_fast_peak_bytes"]
    held = "" if peak is None else f", ours had at most {_mib(peak)} there by the kernel's word"
    return [
        f"- {example}: footprint {_mib(ours['footprint_bytes'])}, budget {_mib(ours['budget_bytes'])}{held};",
        f"  the ballast leaves the others that and {_mib(found['beside_bytes'])} for what is no tensor. They had:",
        *(f"  - {row['name']}: {_had(row)}" for row in found["rows"] if row["left_bytes"] is not None),
    ]


def _had(row: dict[str, Any]) -> str:
    if row["least_left_bytes"] is None:
        return f"{_mib(row['left_bytes'])} at the beginning, then whatever others left it"
    text = f"{_mib(row['left_bytes'])} at the beginning, {_mib(row['mean_left_bytes'])} in the mean"
    return f"{text} ({_mib(row['least_left_bytes'])} to {_mib(row['most_left_bytes'])} at any look)"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


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
    for example in () if chosen.table else chosen.examples:
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / f"{example}.json"
            planned(example, plan)
            found = executed(example, plan, chosen.memory, chosen.timeout)
        (FOLDER / f"{example}.json").write_text(json.dumps(found, indent=1) + "\n")
    known = {name: FOLDER / f"{name}.json" for name in EXAMPLES}
    results = {name: json.loads(path.read_text()) for name, path in known.items() if path.exists()}
    if results:
        PAGE.write_text(page(results))
    _bench.emit("ours serves more from fast memory than any placement of the kernel", {"fast": FAST}, results)


if __name__ == "__main__":
    main()
