"""Policies without migrations: everything in one tier, first touch, and pages striped over the tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import ROLES
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.best_fixed import best_fixed_plan
from sentinel.planner.fixed_placement import fill_tiers, footprint_bytes, one_tier, with_page_tiers


class AllFast:
    """Everything in fast memory, whatever it takes; Infeasible where it does not fit."""

    name = "all-fast"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan that the footprint is measured by. Raises Infeasible if the budget is below it."""
        plan = one_tier(profile, machine, 0, self.name)
        if plan.footprint_bytes > machine.fast.capacity_bytes:
            raise Infeasible(
                plan.footprint_bytes,
                machine.fast.capacity_bytes,
                0,
                "policy all-fast keeps everything in the fast tier; choose another policy",
            )
        return plan


class AllSlow:
    """Everything in slower tiers, the first one first."""

    name = "all-slow"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A plan without migrations and without fast memory."""
        plan = one_tier(profile, machine, 1, self.name)
        return replace(plan, footprint_bytes=footprint_bytes(profile))


class FirstTouch:
    """What a kernel does without help: a page is fast if there was room when it was first touched, and stays."""

    name = "first-touch"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """Persistent tensors first, then the pages of the packed transients in the order of their first tenant."""
        plan = one_tier(profile, machine, 0, self.name)
        return with_page_tiers(plan, profile, _first_touch_tiers(plan, profile, machine.fast.capacity_bytes), self.name)


_STRIPES = 1024
"""Pages are dealt in at most 1,024 runs; a tensor much smaller than a run is in one tier."""


def _first_touch_tiers(plan: Plan, profile: Profile, budget: int) -> NDArray[np.int64]:
    """(pages,) tier of each page of an all-fast plan if pages become fast in the order in which they are touched."""
    pages = plan.extent_bytes // PAGE_BYTES
    touched = np.full(pages, np.iinfo(np.int64).max)
    for slot in sorted(plan.slots, key=lambda s: -int(profile.tensors["born_event"][s.tensor])):
        persistent = bool(profile.tensors["persistent"][slot.tensor])
        born = -1 if persistent else int(profile.tensors["born_event"][slot.tensor])
        low, high = slot.offset // PAGE_BYTES, -(-(slot.offset + slot.nbytes) // PAGE_BYTES)
        touched[low:high] = np.minimum(touched[low:high], born)
    return fill_tiers(np.argsort(touched, kind="stable"), (budget, *plan.capacity_bytes[1:]))


class Interleave:
    """One page here, one there, until a tier is full; what is left is in the last one (MPOL_INTERLEAVE)."""

    name = "interleave"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """As many pages in each tier, less where one is full."""
        plan = one_tier(profile, machine, 0, self.name)
        return with_page_tiers(plan, profile, _dealt_by(plan, [1] * len(machine.tiers)), self.name)


class WeightedInterleave:
    """Pages by bandwidth (MPOL_WEIGHTED_INTERLEAVE), as far as fast memory goes, evenly over all addresses."""

    name = "weighted-interleave"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """Each tier's share of the bandwidth, or of the footprint where that is less, in every run of pages."""
        plan = one_tier(profile, machine, 0, self.name)
        weights = [tier.read_bytes_per_s for tier in machine.tiers]
        return with_page_tiers(plan, profile, _dealt_by(plan, weights, evenly=True), self.name)


class BestStatic:
    """The best placement found that moves nothing: each page stays for good where it saves most."""

    name = "best-static"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """All uses are looked at, beforehand: the strongest rival without migrations."""
        return best_fixed_plan(profile, machine, self.name)


class Static:
    """Optimizer state in fast memory, the rest striped over what is left of it."""

    name = "static"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A placement by role: no use is looked at."""
        plan = one_tier(profile, machine, 0, self.name)
        pages = plan.extent_bytes // PAGE_BYTES
        optimizer = np.zeros(pages, bool)
        role = ROLES.index("optimizer")
        for slot in plan.slots:
            if profile.tensors["role"][slot.tensor] == role:
                optimizer[slot.offset // PAGE_BYTES : -(-(slot.offset + slot.nbytes) // PAGE_BYTES)] = True
        budget = machine.fast.capacity_bytes // PAGE_BYTES
        tier = np.ones(pages, np.int64)
        tier[np.flatnonzero(optimizer)[:budget]] = 0
        rest = np.flatnonzero(~optimizer)
        left = max(budget - int(optimizer.sum()), 0)
        tier[rest] = dealt(len(rest) * PAGE_BYTES, left / max(len(rest), 1), left * PAGE_BYTES)
        slow = np.flatnonzero(tier)
        tier[slow] = 1 + fill_tiers(np.arange(len(slow)), plan.capacity_bytes[1:])
        return with_page_tiers(plan, profile, tier, self.name)


def _dealt_by(plan: Plan, weights: Sequence[int], *, evenly: bool = False) -> NDArray[np.int64]:
    """(pages,) tier of each page: dealt to the first tier or to the slower ones by weight, and among these likewise.

    `evenly`: a tier that has less room than its share is dealt what it has room for over all addresses.
    """
    tier = np.zeros(plan.extent_bytes // PAGE_BYTES, np.int64)
    rest = np.arange(len(tier))
    for number, (weight, capacity) in enumerate(zip(weights[:-1], plan.capacity_bytes[:-1], strict=True)):
        nbytes, share = len(rest) * PAGE_BYTES, weight / sum(weights[number:])
        share = min(share, capacity / max(nbytes, 1)) if evenly else share
        rest = rest[dealt(nbytes, share, capacity) > 0]
        tier[rest] = number + 1
    return tier


def dealt(extent: int, share: float, budget: int) -> NDArray[np.int64]:
    """(pages,) tier of each page when a share of them is fast, evenly spread in runs, within `budget` bytes."""
    pages = extent // PAGE_BYTES
    run = max(-(-pages // _STRIPES), 1)
    number = np.arange(pages) // run
    same = np.floor((number + 1) * share + 1e-9) == np.floor(number * share + 1e-9)
    tier = np.asarray(same, np.int64)
    fast = np.flatnonzero(tier == 0)
    tier[fast[budget // PAGE_BYTES :]] = 1
    return tier
