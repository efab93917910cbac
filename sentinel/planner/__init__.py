"""Profile and Machine -> Plan. Pure: no clock, no I/O, no randomness; same inputs, same plan, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.parts import split
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.bound import Bound
from sentinel.planner.bound import bound as bound_of_tensors
from sentinel.planner.integer import AutoTm
from sentinel.planner.parts import better_of, without_ranges, worth_planning
from sentinel.planner.portfolio import Sentinel
from sentinel.planner.published import Sentinel2021
from sentinel.planner.reactive import Capuchin, Lru, NextUse
from sentinel.planner.seal import seal
from sentinel.planner.simple import AllFast, AllSlow, FirstTouch, footprint_bytes
from sentinel.planner.striped import Interleave, Static, WeightedInterleave

__all__ = ["POLICIES", "Bound", "Policy", "bound", "footprint_bytes", "not_slower", "plan", "plan_curve"]


class Policy(Protocol):
    """Where bytes should live; pure."""

    name: str

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A Plan that keeps the laws within `machine.fast.capacity_bytes`."""
        ...


_ALL: tuple[Policy, ...] = (
    *(Sentinel(), Sentinel2021(), AutoTm(), Capuchin(), NextUse(), Lru(), Static()),
    *(WeightedInterleave(), Interleave(), FirstTouch(), AllFast(), AllSlow()),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}
"""By name; `sentinel` is the default."""


def plan(profile: Profile, machine: Machine, policy: str = "sentinel", *, whole_tensors: bool = False) -> Plan:
    """The plan of a policy for one profile on one machine, checked against the laws.

    Where the profile tells the page ranges of large tensors apart and these can matter, they are planned apart, unless
    that is predicted to be slower than with `whole_tensors`; `details["page_ranges"]` tells what each would be.
    Raises UsageError for an unknown policy, Infeasible where not even slow memory helps, PlanError for a bug.
    """
    if policy not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}", f"choose one of {', '.join(sorted(POLICIES))}")
    make, parts = POLICIES[policy].plan, split(profile)
    if not parts.cut:
        return seal(make(profile, machine), profile, machine)
    # A policy that is not told of ranges thinks that a tensor is used evenly; the simulator is told.
    whole = seal(replace(make(without_ranges(profile), machine), predicted_step_ns=None), profile, machine)
    fits = whole.footprint_bytes <= machine.fast.capacity_bytes
    if whole_tensors or fits or not worth_planning(parts, profile):
        return whole
    ranged = replace(parts.fold(make(parts.profile, machine)), fast_needed_bytes=whole.fast_needed_bytes)
    return better_of(seal(ranged, profile, machine), whole, profile, machine)


def bound(profile: Profile, machine: Machine, *, time_limit_s: float = 60.0) -> Bound:
    """The bound of every plan within `machine.fast.capacity_bytes`; the all-fast time where the solver gives up."""
    return bound_of_tensors(split(profile).profile, machine, time_limit_s=time_limit_s)


def plan_curve(profile: Profile, machine: Machine, budgets: Sequence[int], policy: str = "sentinel") -> list[Plan]:
    """The plans of one policy for several amounts of fast memory in bytes, one each, in the order given.

    More fast memory never makes a plan slower: where it would, the plan of the next smaller budget is used again.
    """
    found: dict[int, Plan] = {}
    best: Plan | None = None
    for budget in sorted(set(budgets)):
        made = plan(profile, machine.with_fast_capacity(budget), policy)
        found[budget] = best = made if best is None else not_slower(made, best)
    return [found[budget] for budget in budgets]


def not_slower(made: Plan, smaller: Plan) -> Plan:
    """`made`, or the plan for less fast memory with the capacities of `made`, where that is predicted to be faster."""
    if (smaller.predicted_step_ns or 0) < (made.predicted_step_ns or 0):
        return replace(smaller, capacity_bytes=made.capacity_bytes)
    return made
