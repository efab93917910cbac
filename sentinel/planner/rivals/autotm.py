"""`autotm`: an integer program over whole units, as AutoTM's, for small instances. Solved by HiGHS."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.errors import PlanError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.column_generation import Effort, optimized
from sentinel.planner.fixed_placement import one_tier
from sentinel.planner.workload import make_workload

MOST_UNITS = 600

_BY_NODES = Effort(60, 6, 2, whole_nodes=50)
_BY_TIME = Effort(60, 6, 20, whole_nodes=1 << 30)
"""More timelines than nodes are enough for: a search among them, cut short, may find less than one among fewer."""


class AutoTm:
    """Each unit follows one timeline, whole: no page ranges. The timelines are those that `sentinel` mixes.

    Its search for the best mix ends after 50 nodes, and the plan is the same everywhere. `search_s`: it goes on for so
    many seconds among more timelines, and the better mix is taken; where time ended it, the plan depends on the host.
    Either way `details["gap"]` says by what share of its time a mix of the same timelines could be shorter at most.
    """

    name = "autotm"

    def __init__(self, search_s: float | None = None) -> None:
        by_time = () if search_s is None else (replace(_BY_TIME, whole_s=search_s),)
        self._efforts = (*by_time, _BY_NODES)

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
        found = [decision for _, decision in optimized(work, *self._efforts)]
        if not found:
            raise PlanError("policy autotm: the solver found no plan; use sentinel")
        decision = min(found, key=lambda each: int(each.details["program_ns"]))
        return assemble(
            decision, work.units, profile, machine, policy=self.name, footprint_bytes=all_fast.footprint_bytes
        )
