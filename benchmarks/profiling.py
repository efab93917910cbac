"""Claim: a step profiled page by page costs at most 1.5 of a stock one (the paper: up to 5), and changes no bit.

Each round is a process that trains a GPT-2, armed at every block both ways and at the optimizer; its steps are in
turn stock, in the profiling arena without any observer (`exclusive`), profiled by operators alone (`ops`), and
profiled as a session does it, by operators and each page tracker. Ratios are taken round by round, in wall and in
processor time. The goals: ebpf at most 1.5 in wall time; memory overhead of pages of one's own at most 1.2 % of peak.

    python -m benchmarks.profiling > profiling.json                                # five rounds, some 15 minutes
    python -m benchmarks.profiling --rounds 1 --trackers ebpf > profiling.json     # two minutes
    python -m benchmarks.profiling --into docs/profiling.json                      # and the page beside it
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import _bench, profiling_page

STEP = "benchmarks._profiled_step"
STOCK, EXCLUSIVE, OPS = "stock", "exclusive", "ops"
TRACKERS = ("ebpf", "ebpf:2MiB", "perf", "pagemap", "uffd")
GPT2 = (12, 768, 4, 256)
TOLD = ("layers", "touched_pages", "written_pages", "read_pages", "lost", "granularity_bytes", "notes")


def summary(rounds: list[dict[str, Any]], variant: str) -> dict[str, Any]:
    """Medians, ratios over the stock step, and the last round's counts."""
    walls = [{name: float(run["step_ns"]) for name, run in turn.items()} for turn in rounds]
    cpus = [{name: float(run["cpu_ns"]) for name, run in turn.items()} for turn in rounds]
    result = {
        "step_ns": statistics.median(values[variant] for values in walls),
        "cpu_ns": statistics.median(values[variant] for values in cpus),
    }
    if variant == STOCK:
        return result
    return result | {
        "step_over_stock": _bench.paired(walls, variant, STOCK),
        "cpu_over_stock": _bench.paired(cpus, variant, STOCK),
        "cpu_over_ops": _bench.paired(cpus, variant, OPS),
        "start_ns": statistics.median(turn[variant]["start_ns"] for turn in rounds),
        "stop_ns": statistics.median(turn[variant]["stop_ns"] for turn in rounds),
        **{key: rounds[-1][variant][key] for key in TOLD if key in rounds[-1][variant]},
    }


def memory(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What pages of one's own cost at the step's peak, and what resting pages cost beyond it under each tracker."""
    last = rounds[-1]
    resting = {name: run["resting"] for name, run in last.items() if "resting" in run}
    return {**last[EXCLUSIVE]["memory"], "resting": resting}


def measure(
    variants: list[str], rounds: int, threads: int, shape: list[int]
) -> tuple[list[dict[str, Any]], list[float]]:
    """The raw runs, by round and variant, and the share of the processors that others had in each round."""
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    options = ["--threads", str(threads), "--shape", *map(str, shape)]
    raw: list[dict[str, Any]] = []
    shares = []
    for order in _bench.taking_turns(variants, rounds):
        print(f"round {len(raw) + 1} of {rounds}: {', '.join(order)}", file=sys.stderr, flush=True)
        others = _bench.others_share()
        raw.append(_bench.child(STEP, ["--variants", *order, *options], environment)["runs"])
        shares.append(others())
        ratios = (f"{name} {run['step_ns'] / raw[-1][STOCK]['step_ns']:.2f}" for name, run in raw[-1].items())
        print(f"  over stock: {', '.join(ratios)}", file=sys.stderr, flush=True)
    return raw, shares


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trackers", nargs="+", default=TRACKERS)
    parser.add_argument("--shape", type=int, nargs=4, default=GPT2, metavar=("LAYERS", "WIDTH", "ROWS", "COLUMNS"))
    parser.add_argument("--rounds", type=int, default=5, help="processes (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--into", type=Path, help="write the JSON there, and a page of the same name beside it")
    chosen = parser.parse_args()
    variants = [STOCK, EXCLUSIVE, OPS, *(name for name in chosen.trackers if name != OPS)]
    settings = {"shape": list(chosen.shape), "rounds": chosen.rounds, "threads": chosen.threads}
    raw, shares = measure(variants, **settings)
    losses = [[run["loss"] for run in turn.values()] for turn in raw]  # in the order in which they ran
    results = {
        "variants": {name: summary(raw, name) for name in variants},
        "memory": memory(raw),
        "others_share": shares,
        "same_loss_whatever_the_order": all(row == losses[0] for row in losses),
        "raw": raw,
    }
    told = _bench.told("the cost of a profiled step", {"settings": settings}, results)
    if chosen.into is None:
        print(json.dumps(told, indent=2))
        return
    chosen.into.write_text(json.dumps(told, indent=2) + "\n")
    given = sys.argv[1:]
    at = given.index("--into")
    chosen.into.with_suffix(".md").write_text(profiling_page.page(told, " ".join(given[:at] + given[at + 2 :])))


if __name__ == "__main__":
    main()
