"""Plans around tensors whose tier is fixed: they leave the profile that a policy sees, and come back to its plan.

A policy sees a profile in which pinned tensors are not managed, so none can do otherwise. Their bytes are off the
capacities that it sees. What is kept slow is always served by slow memory: on a machine that takes recorded times that
time is part of the layers; on one that computes them, part of their traffic. Both are rounded down, so a bound of what
is left is a bound of all plans that keep the pins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.errors import UsageError
from sentinel.core.extents import merge_extents
from sentinel.core.machine import Machine
from sentinel.core.pins import FAST, SLOW, Pins, too_large
from sentinel.core.plan import Block, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES, format_bytes


@dataclass(frozen=True, eq=False)
class Rest:
    """What a policy is to plan. `profile`, `machine`: without the pinned tensors and the room that they take.

    `tensors`: (pinned,) indexes of these; `tiers`: (pinned,) where each is kept; `saved_ns`: (pinned,) what slow memory
    takes longer for their uses in a step, so much is saved by, or lost with, each pin.
    """

    profile: Profile
    machine: Machine
    tensors: NDArray[np.int64]
    tiers: NDArray[np.int64]
    saved_ns: NDArray[np.int64]
    pins: Pins


def rest_of(profile: Profile, machine: Machine, pins: Pins) -> Rest:
    """What is left to plan. Raises UsageError where what is pinned does not fit, or cannot be used where it is kept."""
    homes = pins.homes(profile)
    nbytes = -(-profile.tensors["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    fast_bytes, slow_bytes = (int(nbytes[homes == home].sum()) for home in (FAST, SLOW))
    budget = machine.fast.capacity_bytes
    if fast_bytes > budget:
        kept = np.flatnonzero(homes == FAST)
        largest = kept[np.argsort(-nbytes[kept], kind="stable")].tolist()
        named = [f"{profile.names[i]} ({format_bytes(nbytes[i])})" for i in largest]
        raise UsageError(too_large(fast_bytes, budget, named), "keep less fast, or give more fast memory")
    slow = _slow_tier(machine, slow_bytes)
    tensors = np.flatnonzero(homes >= 0)
    tiers = np.where(homes[tensors] == FAST, 0, slow)
    # several slower tiers: what is not kept slow would be in the first one that can be used in place
    extra = slow_extra_ns(profile, machine, slow)
    own = profile.extents["tensor"][profile.accesses["extent"]]
    saved = np.bincount(own, extra, len(profile.names))[tensors].astype(np.int64)
    capacities = {0: fast_bytes, slow: slow_bytes}
    left = tuple(
        replace(tier, capacity_bytes=tier.capacity_bytes - capacities.get(index, 0))
        for index, tier in enumerate(machine.tiers)
    )
    return Rest(
        _without(profile, machine, homes, slow, extra), replace(machine, tiers=left), tensors, tiers, saved, pins
    )


def put_back(plan: Plan, rest: Rest, profile: Profile, machine: Machine) -> Plan:
    """`plan`, one of `rest`, with the pinned tensors: first in its addresses, in blocks that never migrate."""
    order = np.argsort(rest.tiers, kind="stable")
    tensors, tiers = rest.tensors[order], rest.tiers[order]
    nbytes = profile.tensors["nbytes"][tensors]
    pages = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    offsets = np.cumsum(pages) - pages
    shift, length = int(pages.sum()), profile.n_layers
    rows = list(zip(tensors.tolist(), tiers.tolist(), nbytes.tolist(), pages.tolist(), offsets.tolist(), strict=True))
    own = [Slot(i, profile.names[i], None, offset, room) for i, _, room, _, offset in rows]
    kept = [
        Block(offset, room, 0, length, tier, (i,), profile.names[i], persistent=True)
        for i, tier, _, room, offset in rows
    ]
    first = [Segment(offset, room, tier) for _, tier, _, room, offset in rows]
    shifted = (replace(slot, offset=slot.offset + shift) for slot in plan.slots)
    fast_bytes = int(pages[tiers == 0].sum())
    return replace(
        plan,
        capacity_bytes=tuple(tier.capacity_bytes for tier in machine.tiers),
        segments=(*_joined(first), *(replace(each, offset=each.offset + shift) for each in plan.segments)),
        slots=tuple(sorted((*own, *shifted), key=lambda slot: slot.tensor)),
        blocks=(*(replace(block, offset=block.offset + shift) for block in plan.blocks), *kept),
        footprint_bytes=plan.footprint_bytes + shift,
        fast_needed_bytes=plan.fast_needed_bytes + fast_bytes,
        predicted_step_ns=None,
        uses=plan.uses[:0],
        details={**plan.details, "pins": {**rest.pins.told(), "tensors": _told(rest, profile)}},
    )


def _told(rest: Rest, profile: Profile) -> list[dict[str, Any]]:
    """Of each pinned tensor: its name and size, where it is kept, and what that saves or costs a step."""
    rows = zip(rest.tensors.tolist(), rest.tiers.tolist(), rest.saved_ns.tolist(), strict=True)
    return [
        {
            "name": profile.names[i],
            "nbytes": int(profile.tensors["nbytes"][i]),
            "tier": rest.machine.tiers[tier].name,
            "slow_use_ns": ns,
        }
        for i, tier, ns in rows
    ]


def _slow_tier(machine: Machine, nbytes: int) -> int:
    """The first slower tier whose bytes can be used in place. Raises UsageError where `nbytes` have no such place."""
    usable = [tier for tier in machine.slower if machine.tiers[tier].addressable]
    if not nbytes:
        return next(iter(usable), machine.slower[0])
    fits = [tier for tier in usable if machine.tiers[tier].capacity_bytes >= nbytes]
    if not fits:
        why = "has room for that" if usable else "can be used in place"
        raise UsageError(
            f"{format_bytes(nbytes)} are in keep_slow, but no slower tier of {machine.name} {why}",
            "keep less slow",
        )
    return fits[0]


def _without(
    profile: Profile, machine: Machine, homes: NDArray[np.int8], slow: int, extra: NDArray[np.float64]
) -> Profile:
    """`profile` with what is pinned not managed, and with the time that slow memory takes for what is kept there."""
    length = profile.n_layers
    in_slow = homes[profile.extents["tensor"][profile.accesses["extent"]]] == SLOW
    changes: dict[str, Any] = {}
    if machine.flops_per_s is None:
        lost = np.bincount(profile.accesses["layer"][in_slow], extra[in_slow], length)
        changes["layer_ns"] = profile.layer_ns + np.floor(lost).astype(np.int64)
    else:  # as many bytes as fast memory would move in the time that slow memory takes
        accesses = profile.accesses.copy()
        fast, there = machine.fast, machine.tiers[slow]
        for column, dearer in (
            ("read_bytes", fast.read_bytes_per_s / there.read_bytes_per_s),
            ("written_bytes", fast.write_bytes_per_s / there.write_bytes_per_s),
        ):
            accesses[column][in_slow] = (accesses[column][in_slow] * max(dearer, 1.0)).astype(np.int64)
        changes["accesses"] = accesses
    tensors = profile.tensors.copy()
    whole = merge_extents(replace(profile, **changes), homes >= 0)
    tensors["managed"][homes >= 0] = False
    return replace(whole, tensors=tensors)


def _joined(segments: list[Segment]) -> list[Segment]:
    """Neighbours of one tier in one segment."""
    out: list[Segment] = []
    for each in segments:
        if out and out[-1].tier == each.tier:
            out[-1] = Segment(out[-1].offset, out[-1].nbytes + each.nbytes, each.tier)
        else:
            out.append(each)
    return out
