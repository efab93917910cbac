"""The published policy rung by rung, for the paper's ablation: what each idea adds. Not for use.

Every rung gets the interval length that the simulator finds best for it, so that a rung shows its idea and not a
better or worse guess of a length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Decision
from sentinel.planner.intervals import choose, decide, interval_cuts, make_episodes
from sentinel.planner.portfolio import Sentinel
from sentinel.planner.published import Sentinel2021, by_intervals, lengths_to_try
from sentinel.planner.reserve import reserve
from sentinel.planner.shared_pages import shared_pages
from sentinel.planner.simple import footprint_bytes, one_tier
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful

RUNGS = ("direct", "intervals", "reservation", "co-allocation", "test and trial", "ours")
"""Direct migration: what a layer needs comes while the one before it runs. Then with intervals; with the reserve for
short-lived tensors; with co-allocation (until then small tensors share pages as they are born); as published; ours."""


def ladder(profile: Profile, machine: Machine) -> dict[str, int]:
    """Simulated step in ns of each rung, in the order of `RUNGS`."""
    footprint = footprint_bytes(profile)
    if footprint <= machine.fast.capacity_bytes:
        all_fast = simulate_lawful(one_tier(profile, machine, 0, "all-fast"), profile, machine).step_ns or 0
        return dict.fromkeys(RUNGS, all_fast)
    apart, mixed = (make_workload(p, machine, footprint) for p in (profile, shared_pages(profile)))
    lengths = lengths_to_try(profile.n_layers)
    ours = Sentinel().plan(profile, machine).predicted_step_ns or 0
    times = (
        _best(mixed, [1], _unreserved),
        _best(mixed, lengths, _unreserved),
        _best(mixed, lengths, _reserved),
        _best(apart, lengths, _reserved),
        min(Sentinel2021(mil).plan(profile, machine).predicted_step_ns or 0 for mil in lengths),
        ours,
    )
    return dict(zip(RUNGS, times, strict=True))


def _best(work: Workload, lengths: list[int], decided: Callable[[Workload, int], Decision]) -> int:
    return min(
        simulate_lawful(_drawn(work, decided(work, mil)), work.profile, work.machine).step_ns or 0 for mil in lengths
    )


def _drawn(work: Workload, decision: Decision) -> Plan:
    """The plan of a decision; `capacity_bytes` of its machine."""
    return assemble(
        replace(decision, details={}),
        work.units,
        work.profile,
        work.machine,
        policy="ladder",
        footprint_bytes=work.footprint_bytes,
    )


def _unreserved(work: Workload, mil: int) -> Decision:
    """Long-lived tensors first; short-lived ones get what room is left to them in every layer."""
    episodes = make_episodes(work, interval_cuts(work.n_layers, mil))
    free = np.full(work.n_layers, work.budget_bytes)
    density = episodes.value_ns / work.units.nbytes[episodes.unit]
    order = np.lexsort((episodes.unit, -density, episodes.begin % work.n_layers))
    granted = choose(work, episodes, free, order)
    return decide(work, episodes, granted, reserve(work, int(free.min())))


def _reserved(work: Workload, mil: int) -> Decision:
    return by_intervals(work, mil, reserve(work, work.budget_bytes))
