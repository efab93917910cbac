"""`autotm`: an integer program over whole units, as AutoTM's, for small instances. Solved by HiGHS, deterministic."""

from __future__ import annotations

from sentinel.core.errors import PlanError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.column_generation import Effort, optimized
from sentinel.planner.fixed_placement import one_tier
from sentinel.planner.workload import make_workload

MOST_UNITS = 600

_NODES = 50


class AutoTm:
    """Each unit follows one timeline, whole: no page ranges. The timelines are those that `sentinel` mixes."""

    name = "autotm"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The best whole-tensor plan that a bounded search finds. Raises PlanError above `MOST_UNITS` units."""
        all_fast = one_tier(profile, machine, 0, self.name)
        if all_fast.footprint_bytes <= machine.fast.capacity_bytes:
            return all_fast
        work = make_workload(profile, machine, all_fast.footprint_bytes)
        if len(work.units) > MOST_UNITS:
            raise PlanError(
                f"policy autotm is for at most {MOST_UNITS} blocks, this step has {len(work.units)}; use sentinel"
            )
        found = list(optimized(work, Effort(60, 6, 2, whole_nodes=_NODES)))
        if not found:
            raise PlanError("policy autotm: the solver found no plan; use sentinel")
        _, decision = found[0]
        return assemble(
            decision, work.units, profile, machine, policy=self.name, footprint_bytes=all_fast.footprint_bytes
        )
