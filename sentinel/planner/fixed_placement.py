"""Placements in which every page stays in one tier for good. Which tier is best for each: `best_fixed`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.packing import pack_slots
from sentinel.planner.workload import Units, make_units


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


def fill_tiers(order: np.ndarray, capacity_bytes: Sequence[int]) -> np.ndarray:
    """(pages,) tier of each page if they fill the tiers in this order; the last tier takes what is left."""
    tier = np.zeros(len(order), np.int64)
    ends = list(itertools.accumulate(capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]))
    tier[order] = np.searchsorted(ends, np.arange(len(order)), side="right")
    return tier


def with_page_tiers(plan: Plan, profile: Profile, tier: np.ndarray, policy: str) -> Plan:
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
