"""One example under one policy, for benchmarks/validation.py: what was predicted and executed, as a line of JSON.

Half of the later steps predict the other half, and the other way round: the plan is simulated with the layer times of
every second step, and held against the steps between them. So both are of the same minute of the same host.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sentinel
from sentinel.core.errors import Infeasible
from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.session import current, set_overrides
from sentinel.session.planning import Dataflow
from sentinel.simulator import simulate
from sentinel.simulator.plain import layer_ns_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def trained(example: str, steps: int) -> None:
    """Train as the example does, without its report."""
    sys.path.insert(0, str(EXAMPLES))
    import common

    spec = importlib.util.spec_from_file_location("example", EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    module.train(common.Options(steps=steps))


def halves(run: Run, flow: Dataflow, judged: int) -> list[dict[str, int]]:
    """Predicted and executed step, twice: from every second of the last `judged` steps for those between them."""
    steps = run.steps["step"][run.steps["in_step"]][-judged:]
    first, second = steps[::2], steps[1::2]
    return [_half(run, flow, given, held) for given, held in ((first, second), (second, first))]


def _half(run: Run, flow: Dataflow, given: NDArray[np.int64], held: NDArray[np.int64]) -> dict[str, int]:
    plan, profile, machine = flow.plan, flow.profile, flow.machine
    assert plan is not None
    assert profile is not None
    assert machine is not None
    layer_ns = layer_ns_of(run, given, profile.n_layers, machine)
    if layer_ns is None:
        raise SystemExit("no later step ran as planned: --steps gives it more")
    profile = replace(profile, layer_ns=layer_ns, step_ns_plain=int(layer_ns.sum()))
    predicted = simulate(plan, profile, machine, steps=2).step_ns
    assert predicted is not None
    executed = int(np.median(run.steps["duration_ns"][np.isin(run.steps["step"], held)]))
    return {"predicted_ns": predicted, "executed_ns": executed, "plain_ns": int(layer_ns.sum())}


def accounts(run: Run, plan: Plan, simulated: Run | None) -> list[dict[str, Any]]:
    """A row a tier, in bytes: what it has, the most that is planned, simulated and was held in a layer; of how many
    executed layers it held more than it has, and more than is planned."""
    whole = np.isin(run.layers["step"], run.steps["step"][run.steps["in_step"]])
    layer, found = run.layers["layer"][whole], []
    for tier, name in enumerate(run.tier_names):
        held, expected = run.held_bytes(tier), None if simulated is None else simulated.held_bytes(tier)
        if held is None:
            raise SystemExit(f"the run does not tell what {name} held")
        held, planned, capacity = held[whole], plan.held_bytes[tier], plan.capacity_bytes[tier]
        found.append(
            {
                "name": name,
                "capacity_bytes": capacity,
                "planned_bytes": int(planned.max()),
                "simulated_bytes": None if expected is None else int(expected.max()),
                "executed_bytes": int(held.max(initial=0)),
                "layers": len(held),
                "layers_above_capacity": int((held > capacity).sum()),
                "layers_above_plan": int((held > planned[layer]).sum()),
            }
        )
    return found


def main() -> None:
    """Train, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("example", "policy", "fast", "slow"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--judged", type=int, required=True)
    given = parser.parse_args()
    set_overrides({"fast": given.fast, "slow": given.slow, "policy": given.policy})
    try:
        trained(given.example, given.steps)
    except Infeasible as error:
        print(json.dumps({"refused": str(error)}))
        return
    run, session = sentinel.stop(), current()
    assert session is not None
    print(json.dumps(_told(run, session.flow, given.judged)))


def _told(run: Run, flow: Dataflow, judged: int) -> dict[str, Any]:
    steady = run.steps[run.steps["in_step"]]
    assert flow.plan is not None
    return {
        "tiers": accounts(run, flow.plan, flow.simulated),
        "emulated": run.emulated,
        "halves": halves(run, flow, judged),
        "ahead_ns": flow.simulated.step_ns if flow.simulated is not None else None,
        "executed_steps_ns": steady["duration_ns"][-judged:].tolist(),
        "stall_ns_per_step": int(np.median(steady["stall_ns"][-judged:])),
        "planned_anew": bool(run.counters.steps_before),
        "copied_bytes": run.counters.copied_bytes,
        "copy_cpu_ns": run.counters.copy_cpu_ns,
    }


if __name__ == "__main__":
    main()
