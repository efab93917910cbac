"""Claim: a step profiled at 4 KiB costs at most 1.5 of a stock one (the paper: up to 5), and changes no bit.

In one process per run, steps of a GPT-2 are in turn stock, in the profiling arena without a tracker
(`exclusive`), and profiled by each tracker; ratios are taken round by round, in wall and in processor time.
The goals: ebpf at most 1.5, memory overhead of page exclusivity at most 1.2 % of peak.

    python benchmarks/profiling.py --trackers ebpf perf pagemap --rounds 5 > profiling.json
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks import _bench

STEP = "benchmarks._profiled_step"
GPT2 = (12, 768, 4, 256)


def summary(rounds: list[dict[str, Any]], variant: str) -> dict[str, Any]:
    """Ratios over the stock step, and the last round's counts."""
    walls = [{name: float(run["step_ns"]) for name, run in turn.items()} for turn in rounds]
    cpus = [{name: float(run["cpu_ns"]) for name, run in turn.items()} for turn in rounds]
    last = rounds[-1][variant]
    counts = {key: last.get(key) for key in ("layers", "touched_pages", "written_pages", "read_pages", "lost", "notes")}
    return {
        "step_over_stock": _bench.paired(walls, variant, "stock"),
        "cpu_over_stock": _bench.paired(cpus, variant, "stock"),
        "cpu_over_exclusive": _bench.paired(cpus, variant, "exclusive"),
        "cpu_ns_per_touched_page": _per_page(rounds, variant),
        "start_ns": statistics.median(turn[variant]["start_ns"] for turn in rounds),
        "stop_ns": statistics.median(turn[variant]["stop_ns"] for turn in rounds),
        **counts,
    }


def _per_page(rounds: list[dict[str, Any]], variant: str) -> float | None:
    pages = rounds[-1][variant].get("touched_pages")
    if not pages:
        return None
    return float(statistics.median((t[variant]["cpu_ns"] - t["exclusive"]["cpu_ns"]) / pages for t in rounds))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trackers", nargs="+", default=["ebpf", "perf", "pagemap", "uffd"])
    parser.add_argument("--shape", type=int, nargs=4, default=GPT2, metavar=("LAYERS", "WIDTH", "ROWS", "COLUMNS"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    variants = ["exclusive", *chosen.trackers]
    threads = str(chosen.threads)
    options = ["--rounds", str(chosen.rounds), "--threads", threads, "--shape", *map(str, chosen.shape)]
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    rounds = _bench.child(STEP, [*variants, *options], environment)["rounds"]
    settings = {"shape": chosen.shape, "rounds": chosen.rounds, "threads": chosen.threads}
    results = {name: summary(rounds, name) for name in variants}
    _bench.emit("the cost of a profiled step", settings, {"trackers": results, "raw": rounds})


if __name__ == "__main__":
    main()
