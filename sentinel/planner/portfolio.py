"""`sentinel`: many candidates, every one simulated, the best one taken."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.published import by_intervals, interval_cost_ns, lengths_to_try
from sentinel.planner.reserve import reserve
from sentinel.planner.simple import FirstTouch, footprint_bytes, one_tier
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate

_SIMULATED = 4


class Sentinel:
    """The default policy."""

    name = "sentinel"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The candidate that the simulator finds fastest; all in fast memory where that fits."""
        footprint = footprint_bytes(profile)
        if footprint <= machine.fast.capacity_bytes:
            return one_tier(profile, machine, 0, self.name)
        work = make_workload(profile, machine, footprint)
        short = reserve(work, work.budget_bytes)
        ranked = sorted((interval_cost_ns(work, mil, short), mil) for mil in lengths_to_try(work.n_layers))
        candidates: list[tuple[str, Plan]] = [("first-touch", FirstTouch().plan(profile, machine))]
        for _, mil in ranked[:_SIMULATED]:
            decision = replace(by_intervals(work, mil, short), details={"mil": mil})
            drawn = assemble(decision, work.units, profile, machine, policy=self.name, footprint_bytes=footprint)
            candidates.append((f"mil={mil}", drawn))
        return best_of(candidates, profile, machine, self.name)


def best_of(candidates: list[tuple[str, Plan]], profile: Profile, machine: Machine, policy: str) -> Plan:
    """The fastest of the candidates by simulation, the first among equals; `details` tells of the others."""
    runs = [simulate(plan, profile, machine) for _, plan in candidates]
    times = [int(run.step_ns or 0) for run in runs]
    best = times.index(min(times))
    name, plan = candidates[best]
    details = {
        **plan.details,
        "chosen": name,
        "alternatives": {label: time for (label, _), time in zip(candidates, times, strict=True)},
        "cases": {key.removeprefix("case"): n for key, n in runs[best].counters.items()},
    }
    return replace(plan, policy=policy, predicted_step_ns=times[best], details=details)
