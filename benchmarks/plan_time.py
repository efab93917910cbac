"""How long planning takes: 10,000 tensors over 1,000 layers, and a GPT-2 of 719 million parameters.

The default policy, the bound apart. Fresh processes take turns, so that `--against` tells
another checkout from this one whatever else the machine does. A process plans a small step first, so that nothing is
imported meanwhile; then it plans the step, and plans it again with other layer times, as a session does after some
applied steps. `cpu_s` is what a busy machine leaves true; `body` is a digest of all segments, slots, blocks and
migrations. Memory is that of one more plan, under tracemalloc, which slows it down. A session asks for the footprint
first, for its budget: that is in the time of its first plan.

The made-up step is `benchmarks.traces.synthetic`. The GPT-2 (36 blocks of 1280, 8,192 words, batch 1×256, AdamW) is
traced with fake tensors: operators, sizes and lives are those of the model, layer times are nominal.

    python benchmarks/plan_time.py                                          # this checkout alone
    python benchmarks/plan_time.py --against ../before > docs/costs/plan-time.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

if "--child" not in sys.argv:  # a child has the checkout that it measures in PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _bench, traces
from benchmarks.traces.synthetic import synthetic
from sentinel import machines
from sentinel.core.machine import Machine
from sentinel.core.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.trace import LayerId, Quality
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import footprint_bytes, plan

HERE = Path(__file__).resolve().parents[1]
CASES = {"synthetic": ("optane-m5", 0.2), "gpt2-719m": ("cxl-m5", 0.3)}
"""A described machine, and fast memory as a share of the footprint."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: machine, versions, and the times of each case by checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the root of another checkout, to take turns with")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--tensors", type=int, default=10_000, help="of the made-up step")
    parser.add_argument("--layers", type=int, default=1000, help="of the made-up step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)  # the case, and the file of its profile
    given = parser.parse_args(arguments)
    if min(given.tensors, given.layers, given.rounds) < 1:
        parser.error("give at least one tensor, one layer and one round")
    if unknown := set(given.cases.split(",")) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; choose some of {', '.join(CASES)}")
    if given.against and not (given.against / "sentinel" / "planner").is_dir():
        parser.error(f"{given.against} is no checkout of Sentinel")
    size = {"n_tensors": given.tensors, "n_layers": given.layers}
    if given.child:
        case, path = given.child
        print(json.dumps(_planned(case, _read(Path(path)) if path else synthetic(**size))))
        return
    checkouts = {"this": HERE} | ({"other": given.against.resolve()} if given.against else {})
    cases = {case: _taking_turns(case, checkouts, given.rounds, size) for case in given.cases.split(",")}
    settings = {"rounds": given.rounds, "commits": {name: _commit(path) for name, path in checkouts.items()}, **size}
    _bench.emit((__doc__ or "").splitlines()[0], {"settings": settings}, cases)


def _written(case: str) -> Path:
    """A file with the columns of a traced profile: checkouts may differ in how they save one."""
    profile, path = traces.load(case), traces.FOLDER / f"{case}.columns.json"
    columns = {name: getattr(profile, name).tolist() for name in ("layer_ns", "flops", "tensors", "accesses")}
    layers = [[layer.name, layer.occurrence] for layer in profile.layers]
    path.write_text(json.dumps({**columns, "layers": layers, "names": profile.names, "n_events": profile.n_events}))
    return path


def _read(path: Path) -> Profile:
    told = json.loads(path.read_text())
    return Profile(
        layers=tuple(LayerId(*layer) for layer in told["layers"]),
        layer_ns=np.array(told["layer_ns"], np.int64),
        flops=np.array(told["flops"], np.int64),
        names=tuple(told["names"]),
        tensors=np.array([tuple(row) for row in told["tensors"]], TENSOR_DTYPE),
        accesses=np.array([tuple(row) for row in told["accesses"]], ACCESS_DTYPE),
        n_events=told["n_events"],
        quality=Quality("ops", "operator accesses"),
    )


def _planned(case: str, profile: Profile) -> dict[str, Any]:
    """Times of planning and of planning again in this process, and what the plans are."""
    name, fast = CASES[case]
    host = machines.load(name)
    if case != "synthetic":
        host = replace(host, flops_per_s=None)  # as on a host: layers take as long as they took
    plan(synthetic(40, 6), host.with_fast_capacity(1 << 20))
    slower = replace(profile, layer_ns=profile.layer_ns + profile.layer_ns // 5 * (np.arange(profile.n_layers) % 3))
    told: dict[str, Any] = {"tensors": len(profile.names), "layers": profile.n_layers}
    machine: Machine | None = None
    for name, timed in (("plan", profile), ("replan", slower)):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        if machine is None:
            machine = host.with_fast_capacity(int(fast * footprint_bytes(timed)) // PAGE_BYTES * PAGE_BYTES)
        made = plan(timed, machine)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        body = repr((made.segments, made.slots, made.blocks, made.migrations))
        told[name] = {"wall_s": wall_s, "cpu_s": cpu_s, "body": hashlib.sha256(body.encode()).hexdigest()[:16]}
        told[name] |= {
            "step_ns": made.predicted_step_ns,
            "blocks": len(made.blocks),
            "migrations": len(made.migrations),
        }
    assert machine is not None
    tracemalloc.start()
    plan(profile, machine)
    return told | {"peak_bytes": tracemalloc.get_traced_memory()[1]}


def _taking_turns(case: str, checkouts: dict[str, Path], rounds: int, size: dict[str, int]) -> dict[str, Any]:
    """What each checkout's processes told, and this checkout's time over the other's, round by round."""
    path = "" if case == "synthetic" else str(_written(case))
    raw: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for turn in _bench.taking_turns(list(checkouts), rounds):
        for name in turn:
            raw[name].append(_child(case, path, checkouts[name], size))
    both = {name: [told["plan"]["cpu_s"] + told["replan"]["cpu_s"] for told in each] for name, each in raw.items()}
    found: dict[str, Any] = {
        name: {
            "plan_cpu_s": statistics.median(told["plan"]["cpu_s"] for told in each),
            "plan_wall_s": statistics.median(told["plan"]["wall_s"] for told in each),
            "both_cpu_s": statistics.median(both[name]),
            "both_wall_s": statistics.median(told["plan"]["wall_s"] + told["replan"]["wall_s"] for told in each),
            "peak_bytes": max(told["peak_bytes"] for told in each),
        }
        for name, each in raw.items()
    }
    if "other" in raw:
        alone = {name: [told["plan"]["cpu_s"] for told in each] for name, each in raw.items()}
        for what, times in (("plan", alone), ("both", both)):
            pairs = [{"this": one, "other": other} for one, other in zip(times["this"], times["other"], strict=True)]
            found[f"{what}_this_over_other"] = _bench.paired(pairs, "this", "other")
        bodies = [{(told["plan"]["body"], told["replan"]["body"]) for told in each} for each in raw.values()]
        found["same_plans"] = bodies[0] == bodies[1]
    first = raw["this"][0]
    return {"tensors": first["tensors"], "layers": first["layers"], **found, "raw": raw}


def _child(case: str, path: str, checkout: Path, size: dict[str, int]) -> dict[str, Any]:
    options = ["--child", case, path, "--tensors", str(size["n_tensors"]), "--layers", str(size["n_layers"])]
    done = subprocess.run(
        [sys.executable, __file__, *options],
        env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _commit(checkout: Path) -> str:
    """The commit that is checked out, "+" behind it if files differ from it; "" if that is not known."""
    asked = ("git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*")
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    main()
