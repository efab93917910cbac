"""One example for benchmarks/blind_validation.py: a plan and its predicted step for each policy, as a line of JSON.

The example trains with everything fast, under Sentinel. Its layer times, a profile of one of its steps and what copies
of its blocks take from its steps (_copies_beside.py) are all that is known of it; no step of a plan that is predicted
here has run. `ratio` is of the simulated step to the plain one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sentinel
from benchmarks._blind_commitment import ALL_FAST, FORCED, OURS, digest_of
from benchmarks._copies_beside import STEPS, CopiesBeside
from benchmarks._validated_run import trained
from sentinel import files
from sentinel.calibrate import as_copied_here
from sentinel.core.budget import Budget
from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import parse_amount
from sentinel.planner import footprint_bytes, plan
from sentinel.session import current, set_overrides
from sentinel.simulator import plain_layer_ns, simulate
from sentinel.tiers.choice import links_among


def as_asked(machine: Machine) -> Machine:
    """`machine` with the links of a host that was not calibrated, as fast as one mover: on a calibrated one those of a
    session are as fast as copies were when it was calibrated, and have the prices of that day."""
    return replace(machine, links=links_among(machine.fast, [machine.tiers[index] for index in machine.slower]))


def forced(profile: Profile, machine: Machine, ours: Mapping[str, Any], budget: Budget) -> Plan:
    """Ours as it would be if moves took nothing from compute, and no worse machine had to be forgiven. Raises
    SentinelError where no plan has to be forced to move, or none moves even so."""
    if ours.get("migrations"):
        raise UsageError("ours moves by itself", "judge that plan")
    made = plan(profile, machine.with_moves_dearer(0), OURS, budget=budget, forgiving=False)
    if not made.migrations:
        raise UsageError("ours moves nothing even where moves take nothing", "give it less fast memory")
    return made


def predicted(
    profile: Profile, machine: Machine, policy: str, fast: str, folder: Path, stem: str, ours: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of one policy, kept in `folder`, and what it is to do to a step; or why there is none. `ours`: what was
    predicted of ours before, if it was."""
    share = "100%" if policy == ALL_FAST else fast
    budget = Budget(parse_amount(share).of(footprint_bytes(profile)))
    try:
        if policy == FORCED:
            made = forced(profile, machine, ours, budget)
        else:
            made = plan(profile, machine, policy, budget=budget)
    except SentinelError as error:
        return {"refused": str(error)}
    run = simulate(made, profile, machine, steps=2)
    path = folder / f"{stem}-{policy}.json"
    files.save(files.with_origin(made, profile=profile, machine=machine), path)
    assert run.step_ns is not None
    return {
        "ratio": run.step_ns / int(profile.layer_ns.sum()),
        "migrations": len(made.migrations),
        "migrated_bytes": sum(move.nbytes for move in made.migrations),
        "fast_bytes": made.capacity_bytes[0],
        "plan": path.name,
        "plan_sha256": digest_of(path),
    }


def main() -> None:
    """Train, plan, predict; print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("example", "fast", "slow"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--policies", nargs="+", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plans", type=Path, required=True)
    given = parser.parse_args()
    set_overrides({"fast": "100%", "slow": given.slow, "policy": ALL_FAST})
    with CopiesBeside() as beside, sentinel.observe(beside):
        trained(given.example, STEPS + given.steps)
        run, session = sentinel.stop(), current()
    assert session is not None
    flow = session.flow
    assert flow.profile is not None
    assert flow.machine is not None
    layer_ns = plain_layer_ns(run, flow.profile.n_layers)
    if layer_ns is None:
        raise SystemExit("no step ran as planned: --steps gives it more")
    profile = replace(flow.profile, layer_ns=layer_ns, step_ns_plain=int(layer_ns.sum()))
    asked = as_asked(flow.machine)
    machine = beside.seen_on(as_copied_here(asked), asked)
    given.plans.mkdir(parents=True, exist_ok=True)
    kept = given.plans / f"{given.example}-machine.json"
    files.save(machine, kept)
    rows: dict[str, dict[str, Any]] = {}
    for policy in (ALL_FAST, *given.policies, *([FORCED] if OURS in given.policies else [])):
        rows[policy] = predicted(profile, machine, policy, given.fast, given.plans, given.example, rows.get(OURS, {}))
    told = {
        "plain_ns": int(layer_ns.sum()),
        "layers": profile.n_layers,
        "footprint_bytes": footprint_bytes(profile),
        "machine": kept.name,
        "machine_sha256": digest_of(kept),
        "links": [[link.source, link.target, link.bandwidth_bytes_per_s] for link in machine.links],
        "lost": [[link.source, link.target, link.lost_ns_per_kib, link.lost_ns_per_move] for link in machine.links],
        "beside_steps": True,
        "asked_links": [[link.source, link.target, link.bandwidth_bytes_per_s] for link in asked.links],
        "policies": rows,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
