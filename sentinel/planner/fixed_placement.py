"""Placements in which every page stays in one tier for good. Which tier is best for each: `best_fixed`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment
from sentinel.core.profile import Profile
from sentinel.core.ragged import positions
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
    return int(pages[t["persistent"]].sum()) + _packed_bytes(moving, profile.n_events)


_packed: dict[bytes, int] = {}
_MOST_PACKED = 4


def _packed_bytes(moving: np.ndarray, n_events: int) -> int:
    """Of tensors packed by lifetime. Remembered for the last few steps: a job asks for its budget, plans, and plans
    again with other layer times, and each of these begins with it. By a digest of what it follows from, so that equal
    steps are one and the columns of none are kept."""
    sizes, births, deaths = (moving[name].copy() for name in ("nbytes", "born_event", "died_event"))
    digest = hashlib.blake2b(n_events.to_bytes(8, "little"))
    for column in (sizes, births, deaths):
        digest.update(column.tobytes())
    key = digest.digest()
    packed = _packed.get(key)
    if packed is None:
        packed = pack_slots(sizes, births, deaths, n_events)[1]
        if len(_packed) >= _MOST_PACKED:
            _packed.clear()
        _packed[key] = packed
    return packed


def fill_tiers(order: np.ndarray, capacity_bytes: Sequence[int]) -> np.ndarray:
    """(pages,) tier of each page if they fill the tiers in this order; the last tier takes what is left."""
    tier = np.zeros(len(order), np.int64)
    ends = list(itertools.accumulate(capacity // PAGE_BYTES for capacity in capacity_bytes[:-1]))
    tier[order] = np.searchsorted(ends, np.arange(len(order)), side="right")
    return tier


def with_page_tiers(plan: Plan, profile: Profile, tier: np.ndarray, policy: str) -> Plan:
    """An all-fast plan with each page moved to `tier[page]` for good. Blocks are cut where the tier changes."""
    changes = np.flatnonzero(np.diff(tier)) + 1
    blocks, slots = plan.block_columns, plan.slot_columns
    first, last = blocks.offset // PAGE_BYTES, (blocks.offset + blocks.nbytes) // PAGE_BYTES
    before = np.searchsorted(changes, first, side="right")
    count = np.searchsorted(changes, last) - before + 1  # pieces of each block
    of, number = np.repeat(np.arange(len(blocks)), count), positions(count)
    edges = np.append(changes, 0)
    begin = np.where(number == 0, first[of], edges[before[of] + number - 1])
    end = np.where(number == count[of] - 1, last[of], edges[before[of] + number])
    # each tensor of a block is in all pieces from that of its first page to that of its last one
    low, high = np.zeros((2, len(profile.names)), np.int64)
    low[slots.tensor] = slots.offset // PAGE_BYTES
    high[slots.tensor] = -(-(slots.offset + profile.tensors["nbytes"][slots.tensor]) // PAGE_BYTES)
    low, high, owner = low[blocks.tensors], high[blocks.tensors], blocks.owner
    lowest = np.maximum(np.searchsorted(changes, low, side="right") - before[owner], 0)
    highest = np.minimum(np.searchsorted(changes, high) - before[owner], count[owner] - 1)
    spans = np.where((low < last[owner]) & (high > first[owner]), highest + 1 - lowest, 0)
    piece = np.repeat((np.cumsum(count) - count)[owner] + lowest, spans) + positions(spans)
    order = np.argsort(piece, kind="stable")
    members = np.repeat(blocks.tensors, spans)[order].tolist()
    cuts = np.searchsorted(piece[order], np.arange(len(of) + 1))
    columns = (of, begin, end, tier[begin], cuts[:-1], cuts[1:], count[of])
    made = []
    for index, head, tail, home, one, other, pieces in zip(*(column.tolist() for column in columns), strict=True):
        block = plan.blocks[index]
        page, offset, nbytes = head - block.offset // PAGE_BYTES, head * PAGE_BYTES, (tail - head) * PAGE_BYTES
        name = block.name if pieces == 1 else f"{block.name}[{page}:{page + tail - head}]"
        inside = tuple(members[one:other])
        made.append(Block(offset, nbytes, block.start, block.stop, home, inside, name, block.persistent, block.fixed))
    bounds = [0, *changes.tolist(), len(tier)] if len(tier) else [0]
    segments = tuple(
        Segment(low * PAGE_BYTES, (high - low) * PAGE_BYTES, int(tier[low])) for low, high in itertools.pairwise(bounds)
    )
    return replace(plan, policy=policy, blocks=tuple(made), segments=segments)
