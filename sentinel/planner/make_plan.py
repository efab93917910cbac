"""Plans of any policy, checked against the laws; page ranges or whole tensors, whichever is faster.

`PlanOrder` is what a plan is asked for, as a value, so that whoever makes the plan may be another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from sentinel.core import laws
from sentinel.core.budget import Budget
from sentinel.core.errors import Infeasible, PlanError, UsageError
from sentinel.core.extents import extents_as_tensors, merge_extents, plan_of_tensors
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins, put_back, rest_of
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.rules import require
from sentinel.core.run import Run
from sentinel.planner import load_policy
from sentinel.planner.assemble import completed, finalize, footprint_bytes
from sentinel.simulator import simulate, simulate_lawful

FORGIVING = "sentinel"
"""The policy that has candidates, and can look at a worse machine as it chooses."""

SEARCHING = "autotm"
"""The policy whose search may be given seconds."""


class Policy(Protocol):
    """Where bytes should live; pure."""

    name: str

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A Plan that keeps the laws within `machine.fast.capacity_bytes`."""


def plan(
    profile: Profile,
    machine: Machine,
    policy: str = "sentinel",
    *,
    budget: Budget | None = None,
    whole_tensors: bool = False,
    forgiving: bool | None = None,
    pins: Pins | None = None,
    search_s: float | None = None,
) -> Plan:
    """The plan of a policy for one profile on one machine, checked against the laws.

    `budget`: of fast memory; without one, all that the machine has.
    Where the profile tells the page ranges of large tensors apart and these can matter, they are planned apart, unless
    that is predicted to be slower than with `whole_tensors`; `details["page_ranges"]` tells what each would be.
    `forgiving`, of policy `sentinel`, by default (but for very large steps, where it is to be asked for): a plan that
    on `machine.worse()`, or where links alone carry half, takes over 1.03 times what the best placement that moves
    nothing takes there gives way to the fastest candidate that does not.
    `pins`: tensors whose tier is fixed; the policy plans the others around them, and `details["pins"]` tells of each.
    `search_s`, of policy `autotm`: seconds that its search may take; then the plan may depend on the host. Without, the
    search is as long on any host.
    Raises UsageError for an unknown policy, one that cannot forgive or search, and pins that do not fit, Infeasible
    where not even slow memory helps, or there is too little of both, PlanError for a policy that uses tensors in a tier
    that cannot be used in place, and for a bug.
    """
    machine = machine if budget is None else budget.reach(machine)
    make = _in_reach(_made(policy, forgiving, search_s))
    try:
        if not pins:
            return _planned(make, profile, machine, whole_tensors=whole_tensors)
        rest = rest_of(profile, machine, pins)
        around = _planned(make, rest.profile, rest.machine, whole_tensors=whole_tensors)
        return finalize(put_back(around, rest, profile, machine), profile, machine)
    except Infeasible:
        raise
    except PlanError as error:  # only now: what is packed otherwise may fit where all of it in one tier would not
        needed, there = footprint_bytes(profile), sum(tier.capacity_bytes for tier in machine.tiers)
        if needed <= there:
            raise
        raise Infeasible(needed, there, None) from error


def _planned(
    make: Callable[[Profile, Machine], Plan], profile: Profile, machine: Machine, *, whole_tensors: bool
) -> Plan:
    """With page ranges planned apart where that is faster."""
    if not profile.is_cut:
        return finalize(make(profile, machine), profile, machine)
    merged = merge_extents(profile)
    # A policy that is not told of ranges thinks that a tensor is used evenly; the simulator is told.
    whole, run = _simulated(make(merged, machine).told(predicted_step_ns=None), profile, machine)
    fits = whole.footprint_bytes <= machine.fast.capacity_bytes
    if whole_tensors or fits or not worth_planning(profile, merged):
        return whole
    made = plan_of_tensors(make(extents_as_tensors(profile), machine), profile)
    ranged, ranged_run = _simulated(made.told(fast_needed_bytes=whole.fast_needed_bytes), profile, machine)
    return better_of(ranged, whole, {"ranged": ranged_run, "whole": run})


def _in_reach(policy: Policy) -> Callable[[Profile, Machine], Plan]:
    """`policy.plan`; a PlanError that names the policy for a plan that uses tensors where they cannot be used."""

    def make(profile: Profile, machine: Machine) -> Plan:
        made = policy.plan(profile, machine)
        if all(tier.addressable for tier in machine.tiers):
            return made
        try:
            laws.check(made, profile, machine)
        except PlanError as error:
            if not error.rule.startswith(laws.RESIDENCE):
                raise
            raise PlanError(
                f"policy {policy.name} must use tensors in place, which this machine does not allow ({error.rule}):"
                " raise fast=, or"
                f" choose another policy, such as {FORGIVING}",
                layer=error.layer,
                block=error.block,
            ) from error
        return made

    return make


def _made(policy: str, forgiving: bool | None, search_s: float | None) -> Policy:
    able, searches = policy == FORGIVING, policy == SEARCHING
    require(
        (bool(forgiving) and not able, f"policy {policy} has no forgiving plans", f"use policy {FORGIVING}"),
        (search_s is not None and not searches, f"policy {policy} has no search", f"use policy {SEARCHING}"),
        (search_s is not None and not search_s > 0, f"search_s is {search_s}", "give seconds above 0"),
    )
    if able and forgiving is not None:
        from sentinel.planner.portfolio import Sentinel

        return Sentinel(forgiving=forgiving)
    if search_s is not None:
        from sentinel.planner.moving_rivals import AutoTm

        return AutoTm(search_s)
    return load_policy(policy)


def _simulated(made: Plan, profile: Profile, machine: Machine) -> tuple[Plan, Run]:
    """`made` complete, checked against the laws, and simulated."""
    run = simulate(made, profile, machine)
    predicted = run.step_ns if made.predicted_step_ns is None else made.predicted_step_ns
    return completed(made.told(predicted_step_ns=predicted), profile, machine), run


def not_slower(made: Plan, smaller: Plan) -> Plan:
    """`made`, or the plan for less fast memory with the capacities of `made`, where that is predicted to be faster."""
    if (smaller.predicted_step_ns or 0) < (made.predicted_step_ns or 0):
        return replace(smaller, capacity_bytes=made.capacity_bytes)
    return made


LEAST_UNEVEN = 1e-3
"""Ranges are planned apart where this share of the touched bytes is elsewhere than even use would have it: planning
them takes as long again, and below this it cannot show."""


def worth_planning(profile: Profile, merged: Profile) -> bool:
    """Whether what `profile` knows of page ranges can matter to a plan. `merged`: it with whole tensors."""
    a, e, length = profile.accesses, profile.extents, profile.n_layers
    whole = merged.accesses
    tensor = e["tensor"][a["extent"]].astype(np.int64)
    key = whole["extent"].astype(np.int64) * length + whole["layer"]
    total = whole["touched_bytes"][np.searchsorted(key, tensor * length + a["layer"])]
    even = total * (e["nbytes"][a["extent"]] / profile.tensors["nbytes"][tensor])
    uneven = float(np.maximum(a["touched_bytes"] - even, 0).sum())
    return uneven >= LEAST_UNEVEN * float(whole["touched_bytes"].sum()) and uneven > 0


def better_of(ranged: Plan, whole: Plan, runs: dict[str, Run]) -> Plan:
    """The faster plan by prediction, and where they are as fast the one that serves more from fast memory.

    `details["page_ranges"]` of it has, for `ranged` and `whole` under equal fast memory, `fast_served_fraction`,
    `predicted_step_ns` and `migrated_bytes_per_step`; and `chosen`, one of the two names.
    """
    plans = {"ranged": ranged, "whole": whole}
    told = {name: _told(plan, runs[name]) for name, plan in plans.items()}
    name = min(plans, key=lambda n: (told[n]["predicted_step_ns"], -(told[n]["fast_served_fraction"] or 0)))
    return replace(plans[name], details={**plans[name].details, "page_ranges": {**told, "chosen": name}})


def _told(plan: Plan, run: Run) -> dict[str, Any]:
    layers = run.layers
    touched = int(layers["touched_bytes"].sum())
    return {
        "fast_served_fraction": int(layers["served_fast_bytes"].sum()) / touched if touched else None,
        "predicted_step_ns": plan.predicted_step_ns,
        "migrated_bytes_per_step": plan.migrated_bytes_per_step,
    }


class MadePlan(NamedTuple):
    """`simulated`: two steps of `plan`. `left_out`: a sentence on each kind of pin that it does not keep."""

    plan: Plan
    simulated: Run
    left_out: tuple[str, ...]


class PlanOrder(NamedTuple):
    """See `sentinel.planner.plan`. Pins that cannot be kept are left out."""

    profile: Profile
    machine: Machine
    policy: str
    budget: Budget
    pins: Pins

    def made(self) -> MadePlan:
        """The plan. Raises what `plan` raises without any pins."""
        kept, refused = Pins(), list[UsageError | PlanError]()
        for some in filter(None, dict.fromkeys((self.pins, replace(self.pins, slow=()), Pins(slow=self.pins.slow)))):
            try:
                found = self._plan(some)
            except (UsageError, PlanError) as error:
                refused.append(error)
            else:
                kept = some
                break
        else:
            found = self._plan(None)
        simulated = simulate_lawful(found, self.profile, self.machine, steps=2)
        return MadePlan(found, simulated, tuple(_left_out(self.pins, kept, refused)))

    def _plan(self, pins: Pins | None) -> Plan:
        return plan(self.profile, self.machine, self.policy, budget=self.budget, pins=pins)


def _left_out(pins: Pins, kept: Pins, refused: Iterable[UsageError | PlanError]) -> list[str]:
    """Sentences on what of `pins` is not kept, and why."""
    fast = kept.fast != pins.fast or kept.smallest_bytes != pins.smallest_bytes
    lost = " or ".join(kind for kind, is_lost in (("fast", fast), ("slow", kept.slow != pins.slow)) if is_lost)
    whys = (
        error.what if isinstance(error, UsageError) else f"no plan keeps these tensors {lost} ({error})"
        for error in refused
    )
    return [f"{why}; so nothing is kept {lost}" for why in dict.fromkeys(whys)]
