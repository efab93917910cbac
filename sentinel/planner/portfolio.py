"""`sentinel`: several candidates, every one simulated, the best one taken."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.best_fixed import best_fixed_plan
from sentinel.planner.column_generation import efforts_for, is_large, optimized
from sentinel.planner.fixed_placement import footprint_bytes, one_tier
from sentinel.planner.slow_tiers import all_addressable, fetched_plans, has_room, tiered_plans
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate_lawful

WORSE_BY = 1.03
"""On a worse machine the plan that is taken needs at most so many times what the best one that moves nothing needs."""


class Sentinel:
    """The default policy. `forgiving`: what a plan takes on a worse machine is looked at too."""

    name = "sentinel"

    def __init__(self, *, forgiving: bool = False) -> None:
        self._forgiving = forgiving

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The candidate that the simulator finds fastest; all in fast memory where that fits."""
        footprint = footprint_bytes(profile)
        if footprint <= machine.fast.capacity_bytes:
            return one_tier(profile, machine, 0, self.name)
        if len(machine.tiers) > 2:
            plans = tiered_plans(profile, machine, self.name, footprint)
            plans += [(STAYS, best_fixed_plan(profile, machine, self.name))] if all_addressable(machine) else []
            plans = [(label, plan) for label, plan in plans if has_room(plan)]
            if plans:
                return best_of(plans, profile, machine, self.name, forgiving=self._forgiving)
        if not all_addressable(machine):
            return best_of(fetched_plans(profile, machine, self.name, footprint), profile, machine, self.name)
        work = make_workload(profile, machine, footprint)
        plans = []
        for label, decision in optimized(work, *efforts_for(work)):
            drawn = assemble(decision, work.units, profile, machine, policy=self.name, footprint_bytes=footprint)
            plans.append((label, drawn))
        if not plans or not is_large(work):
            plans.append((STAYS, best_fixed_plan(profile, machine, self.name)))
        return best_of(plans, profile, machine, self.name, forgiving=self._forgiving)


STAYS = "by benefit"
"""Label of the candidate in which each page stays for good where it saves most."""


def best_of(
    candidates: list[tuple[str, Plan]], profile: Profile, machine: Machine, policy: str, *, forgiving: bool = False
) -> Plan:
    """The fastest of the candidates by simulation, the first among equals; `details` tells of the others.

    `forgiving`: of those that on `machine.worse()` take at most WORSE_BY times what the candidate STAYS takes there,
    if it is among them.
    """
    runs = [simulate_lawful(plan, profile, machine) for _, plan in candidates]
    times = [int(run.step_ns or 0) for run in runs]
    order = sorted(range(len(times)), key=times.__getitem__)
    stays = dict(candidates).get(STAYS) if forgiving else None
    best = order[0] if stays is None else next(_forgiving(order, candidates, stays, profile, machine.worse()))
    name, plan = candidates[best]
    details = {
        **plan.details,
        "chosen": name,
        "alternatives": {label: time for (label, _), time in zip(candidates, times, strict=True)},
        "cases": runs[best].counters.cases,
    }
    return plan.told(policy=policy, predicted_step_ns=times[best], details=details)


def _forgiving(
    order: list[int], candidates: list[tuple[str, Plan]], stays: Plan, profile: Profile, worse: Machine
) -> Iterator[int]:
    """Those of the candidates, in this order, that the worse machine does not spoil."""
    most_ns = WORSE_BY * (simulate_lawful(stays, profile, worse).step_ns or 0)
    for number in order:
        if (simulate_lawful(candidates[number][1], profile, worse).step_ns or 0) <= most_ns:
            yield number
