"""The published policy rung by rung, for the paper's ablation: what each idea adds. Not for use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.intervals import choose, decide, interval_cuts, make_episodes
from sentinel.planner.published import Sentinel2021, lengths_to_try
from sentinel.planner.reserve import Reserve, reserve
from sentinel.planner.simple import one_tier
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate


class Unreserved:
    """Migration without a reserve: short-lived tensors get what room the long-lived ones leave in every layer.

    `mil`: one interval length; None: the one that the simulator finds best. With 1 it is direct migration: what a
    layer needs comes while the one before it runs.
    """

    def __init__(self, name: str, mil: int | None) -> None:
        self.name, self.mil = name, mil

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan of this rung."""
        all_fast = one_tier(profile, machine, 0, self.name)
        if all_fast.footprint_bytes <= machine.fast.capacity_bytes:
            return all_fast
        work = make_workload(profile, machine, all_fast.footprint_bytes)
        plans = [self._drawn(work, mil) for mil in ([self.mil] if self.mil else lengths_to_try(work.n_layers))]
        times = [simulate(plan, profile, machine).step_ns or 0 for plan in plans]
        return replace(plans[times.index(min(times))], predicted_step_ns=min(times))

    def _drawn(self, work: Workload, mil: int) -> Plan:
        episodes = make_episodes(work, interval_cuts(work.n_layers, mil))
        free = np.full(work.n_layers, work.budget_bytes)
        density = episodes.value_ns / work.units.nbytes[episodes.unit]
        order = np.lexsort((episodes.unit, -density, episodes.begin % work.n_layers))
        granted = choose(work, episodes, free, order)
        left: Reserve = reserve(work, int(free.min()))
        decision = decide(work, episodes, granted, left)
        return assemble(
            decision, work.units, work.profile, work.machine, policy=self.name, footprint_bytes=work.footprint_bytes
        )


LADDER = (Unreserved("direct", 1), Unreserved("intervals", None), Sentinel2021())
"""Direct migration, with intervals, with the reserve for short-lived tensors (co-allocation is in all of them)."""
