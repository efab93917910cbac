"""Policies without a mind: the references every other policy is measured against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.packing import pack_slots
from sentinel.planner.units import Units, make_units


def one_tier(profile: Profile, machine: Machine, tier: int, policy: str, *, units: Units | None = None) -> Plan:
    """Everything in one tier, packed by lifetime; capacities are not looked at."""
    units = units or make_units(profile)
    decision = Decision(whole_parts(units, tier), no_moves(), np.full(len(units.short), tier))
    plan = assemble(decision, units, profile, machine, policy=policy, footprint_bytes=0)
    return replace(plan, footprint_bytes=plan.extent_bytes)


def footprint_bytes(profile: Profile) -> int:
    """Bytes of the all-fast plan: persistent tensors on whole pages, transients packed by lifetime."""
    t = profile.tensors[profile.tensors["managed"]]
    pages = -(-t["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    moving = t[~t["persistent"]]
    _, extent = pack_slots(moving["nbytes"], moving["born_event"], moving["died_event"], profile.n_events)
    return int(pages[t["persistent"]].sum()) + extent


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
        return by_pages(plan, profile, first_touch_tiers(plan, profile, machine.fast.capacity_bytes), self.name)


def first_touch_tiers(plan: Plan, profile: Profile, budget: int) -> np.ndarray:
    """(pages,) tier of each page of an all-fast plan if pages become fast in the order in which they are touched."""
    pages = plan.extent_bytes // PAGE_BYTES
    touched = np.full(pages, np.iinfo(np.int64).max)
    for slot in sorted(plan.slots, key=lambda s: -int(profile.tensors["born_event"][s.tensor])):
        persistent = bool(profile.tensors["persistent"][slot.tensor])
        born = -1 if persistent else int(profile.tensors["born_event"][slot.tensor])
        low, high = slot.offset // PAGE_BYTES, -(-(slot.offset + slot.nbytes) // PAGE_BYTES)
        touched[low:high] = np.minimum(touched[low:high], born)
    return filled(np.argsort(touched, kind="stable"), (budget, *plan.capacity_bytes[1:]))


def filled(order: np.ndarray, capacity_bytes: Sequence[int]) -> np.ndarray:
    """(pages,) tier of each page if they fill the tiers in this order; the last tier takes what is left."""
    tier = np.zeros(len(order), np.int64)
    ends = list(itertools.accumulate(capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]))
    tier[order] = np.searchsorted(ends, np.arange(len(order)), side="right")
    return tier


def by_pages(plan: Plan, profile: Profile, tier: np.ndarray, policy: str) -> Plan:
    """An all-fast plan with each page moved to `tier[page]` for good. Blocks are cut where the tier changes."""
    blocks: list[Block] = []
    nbytes = profile.tensors["nbytes"]
    offset = np.zeros(len(profile.names), np.int64)
    for slot in plan.slots:
        offset[slot.tensor] = slot.offset
    for block in plan.blocks:
        first, last = block.offset // PAGE_BYTES, (block.offset + block.nbytes) // PAGE_BYTES
        cuts = [first, *(np.flatnonzero(np.diff(tier[first:last])) + first + 1).tolist(), last]
        members = np.array(block.tensors, np.int64)
        for low, high in itertools.pairwise(cuts):
            a, b = low * PAGE_BYTES, high * PAGE_BYTES
            inside = members[(offset[members] < b) & (offset[members] + nbytes[members] > a)]
            name = block.name if len(cuts) == 2 else f"{block.name}[{low - first}:{high - first}]"
            blocks.append(
                replace(block, offset=a, nbytes=b - a, tier=int(tier[low]), tensors=tuple(inside.tolist()), name=name)
            )
    cuts = [0, *(np.flatnonzero(np.diff(tier)) + 1).tolist(), len(tier)] if len(tier) else [0]
    segments = tuple(
        Segment(low * PAGE_BYTES, (high - low) * PAGE_BYTES, int(tier[low])) for low, high in itertools.pairwise(cuts)
    )
    return replace(plan, policy=policy, blocks=tuple(blocks), segments=segments)
