"""How long planning takes and how much memory: `python benchmarks/plan_time.py --tensors 10000 --layers 1000 --json`.

The default policy at 20 % fast memory on a described machine, the bound apart. Two runs: one for the time, one
under tracemalloc for the memory, which slows it down. `plan_s` is by the wall, `cpu_s` what a busy machine leaves true.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.traces.synthetic import synthetic
from sentinel import machines
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.planner import footprint_bytes, plan


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the time of one plan and the most memory it held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--machine", default="optane-m5", help="name of a described machine")
    parser.add_argument("--fast", type=float, default=0.2, help="fast memory as a share of the footprint")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    given = parser.parse_args(arguments)
    if min(given.tensors, given.layers) < 1 or not 0 <= given.fast < float("inf"):
        parser.error("give at least one tensor and one layer, and a share of at least 0")
    profile = synthetic(given.tensors, given.layers)
    footprint = footprint_bytes(profile)
    budget = int(given.fast * footprint) // PAGE_BYTES * PAGE_BYTES
    machine = machines.load(given.machine).with_fast_capacity(budget)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    made = plan(profile, machine)
    plan_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    tracemalloc.start()
    plan(profile, machine)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = f"{given.tensors} tensors, {given.layers} layers"
    print(f"{size}: {plan_s:.2f} s ({cpu_s:.2f} s of processor time), {format_bytes(peak)}, {len(made.blocks)} blocks")
    if given.json:
        told = {"tensors": given.tensors, "layers": given.layers, "plan_s": plan_s, "cpu_s": cpu_s, "peak_bytes": peak}
        print(json.dumps({**told, "blocks": len(made.blocks), "migrations": len(made.migrations)}))


if __name__ == "__main__":
    main()
