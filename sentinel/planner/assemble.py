"""Decision -> Plan: addresses, segments, blocks and migrations; and the check that every policy's plan passes last.

Plan addresses, in this order: persistent units; per tier a pool (by events) and an arena (by layers); units
whose parts are born in different tiers. Addresses cost nothing; pages do.

Last, placements in which every page stays in one tier for good.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core import laws
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot
from sentinel.core.profile import Profile, allocation_keys
from sentinel.core.ragged import positions
from sentinel.core.run import REASONS
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from sentinel.core.uses import block_uses
from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.packing import pack_pages, pack_slots
from sentinel.planner.pool import fixed_block, layered_blocks, make_pool
from sentinel.planner.slow_tier_assignment import SlowTierAssigner
from sentinel.planner.workload import Units, make_units, short_peaks, short_tensors
from sentinel.simulator import simulate_lawful


@dataclass
class _Draft:
    """What grows while addresses are given out."""

    top: int
    offset: NDArray[np.int64]  # by tensor
    base: NDArray[np.int64]  # by unit, -1: pooled
    blocks: list[Block]
    segments: list[Segment]
    lasting: int = 0  # bytes of what is persistent: transient addresses are counted from there

    def extend(self, nbytes: int, tier: int) -> int:
        """Open a segment; returns where it begins."""
        begin, self.top = self.top, self.top + nbytes
        if nbytes:
            last = self.segments[-1] if self.segments else None
            if last and last.tier == tier and last.offset + last.nbytes == begin:
                self.segments[-1] = Segment(last.offset, last.nbytes + nbytes, tier)
            else:
                self.segments.append(Segment(begin, nbytes, tier))
        return begin

    def extend_by(self, parts: NDArray[Any]) -> NDArray[np.int64]:
        """Open segments for rows of PART_DTYPE, one after the other; returns where each part begins."""
        nbytes, tier = parts["pages"] * PAGE_BYTES, parts["tier"]
        begins: NDArray[np.int64] = self.top + np.cumsum(nbytes) - nbytes
        heads = np.flatnonzero(np.diff(tier, prepend=-1))
        runs = np.add.reduceat(nbytes, heads) if len(heads) else heads
        for run, home in zip(runs.tolist(), tier[heads].tolist(), strict=True):
            self.extend(run, home)
        return begins

    def align(self, nbytes: int) -> None:
        """So many bytes that follow begin with a huge page, if they are as long.

        What is skipped belongs to the last segment: no page of it is ever touched.
        """
        skipped = -(self.top - self.lasting) % HUGE_PAGE_BYTES
        if nbytes >= HUGE_PAGE_BYTES:
            self.extend(skipped, self.segments[-1].tier if self.segments else 0)


def assemble(
    decision: Decision, units: Units, profile: Profile, machine: Machine, *, policy: str, footprint_bytes: int
) -> Plan:
    """The Plan of a decision. Does not check the laws. Slower tiers that it leaves open are filled as they come."""
    if len(machine.tiers) > 2 and not decision.slow_tiers_chosen:
        decision, _ = SlowTierAssigner(units, profile, machine, range(1, len(machine.tiers))).assign(decision)
    draft = _Draft(0, np.full(len(profile.names), -1, np.int64), np.full(len(units), -1, np.int64), [], [])
    first = np.searchsorted(decision.parts["unit"], np.arange(len(units) + 1))
    _persistent(draft, decision, units, first)
    draft.lasting = draft.top
    pooled = np.bincount(decision.parts["unit"], decision.parts["pooled"], len(units)) > 0
    for tier in range(len(machine.tiers)):
        _pool(draft, decision, units, profile, machine, tier, pooled)
        _arena(draft, decision, units, profile, tier, first, pooled)
    _mixed(draft, decision, units, first, pooled)
    block_of = _movable_blocks(draft, decision, units, profile)
    return Plan(
        policy=policy,
        layers=profile.layers,
        tier_names=tuple(tier.name for tier in machine.tiers),
        capacity_bytes=tuple(tier.capacity_bytes for tier in machine.tiers),
        segments=tuple(draft.segments),
        slots=_slots(draft, profile),
        blocks=tuple(draft.blocks),
        migrations=_migrations(decision, block_of, draft.blocks),
        footprint_bytes=footprint_bytes,
        fast_needed_bytes=fast_needed_bytes(profile, units),
        details=dict(decision.details),
        provisional=profile.provisional,
    )


def has_room(plan: Plan) -> bool:
    """Whether no tier ever holds more than its capacity."""
    return bool((plan.held_bytes <= np.array(plan.capacity_bytes)[:, None]).all())


def fast_needed_bytes(profile: Profile, units: Units) -> int:
    """The paper's bound: the largest reserve for short-lived tensors of a layer, and the largest long-lived tensor."""
    t = profile.tensors[units.short]
    pages = -(-t["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    delta = np.zeros(2 * profile.n_events + 2, np.int64)
    np.add.at(delta, t["born_event"], pages)
    np.add.at(delta, t["died_event"], -pages)
    long = profile.tensors["nbytes"][units.tensors]
    return int(delta.cumsum().max(initial=0)) + int((-(-long // PAGE_BYTES) * PAGE_BYTES).max(initial=0))


def _persistent(draft: _Draft, decision: Decision, units: Units, first: NDArray[np.int64]) -> None:
    lasting = int(units.persistent.sum())  # they come first
    draft.base[:lasting] = draft.extend_by(decision.parts[: first[lasting]])[first[:lasting]]


def _pool(
    draft: _Draft,
    decision: Decision,
    units: Units,
    profile: Profile,
    machine: Machine,
    tier: int,
    pooled: NDArray[np.bool_],
) -> None:
    """Short-lived tensors of this tier, and units that never migrate."""
    tier_of_unit = np.zeros(len(units), np.int64)
    tier_of_unit[decision.parts["unit"]] = decision.parts["tier"]
    chosen = pooled & (tier_of_unit == tier)
    tensors = np.concatenate(
        [units.short[decision.short_tier == tier], units.tensors[chosen[units.unit_of[units.tensors]]]]
    )
    if not len(tensors):
        return
    given = decision.fast_pool if tier == 0 else None
    layered = given is not None or 0 < tier < len(machine.tiers) - 1
    pool = given or make_pool(profile, tensors)
    draft.align(pool.extent)
    base = draft.extend(pool.cap, tier)
    draft.extend(pool.extent - pool.cap, decision.rest_tier)
    draft.offset[pool.tensors] = base + pool.offsets
    name = f"pool:{machine.tiers[tier].name}"
    if layered:
        draft.blocks += layered_blocks(pool, profile, base, tier, name, decision.rest_tier)
    else:
        draft.blocks.append(fixed_block(pool, base, profile.n_layers, tier, name))


def _arena(
    draft: _Draft,
    decision: Decision,
    units: Units,
    profile: Profile,
    tier: int,
    first: NDArray[np.int64],
    pooled: NDArray[np.bool_],
) -> None:
    """Units all of whose parts are born in this tier and that may migrate: packed by layers."""
    lowest = np.minimum.reduceat(decision.parts["tier"], first[:-1]) if len(units) else np.zeros(0, np.int64)
    highest = np.maximum.reduceat(decision.parts["tier"], first[:-1]) if len(units) else np.zeros(0, np.int64)
    rows = np.flatnonzero(~units.persistent & ~pooled & (lowest == tier) & (highest == tier))
    offsets = pack_pages(units.nbytes[rows], units.start[rows], units.stop[rows], profile.n_layers)
    extent = int((offsets + units.nbytes[rows]).max(initial=0))
    draft.align(extent)
    base = draft.extend(extent, tier)
    draft.base[rows] = base + offsets


def _mixed(
    draft: _Draft, decision: Decision, units: Units, first: NDArray[np.int64], pooled: NDArray[np.bool_]
) -> None:
    """Units with parts born in several tiers: addresses of their own, since a page is born in one tier only."""
    sizes, tiers = (decision.parts["pages"] * PAGE_BYTES).tolist(), decision.parts["tier"].tolist()
    mixed = np.flatnonzero((draft.base < 0) & ~pooled)
    for unit, begin, end in zip(mixed.tolist(), first[mixed].tolist(), first[mixed + 1].tolist(), strict=True):
        draft.align(int(units.nbytes[unit]))
        draft.base[unit] = draft.top
        for nbytes, tier in zip(sizes[begin:end], tiers[begin:end], strict=True):
            draft.extend(nbytes, tier)


def _movable_blocks(draft: _Draft, decision: Decision, units: Units, profile: Profile) -> NDArray[np.int64]:
    """Append a block for each part that is not pooled; returns the block of each part, -1 if it is pooled."""
    alone = ~decision.parts["pooled"]
    block_of = np.where(alone, len(draft.blocks) + np.cumsum(alone) - 1, -1)
    members = units.tensors[draft.base[units.unit_of[units.tensors]] >= 0]
    draft.offset[members] = draft.base[units.unit_of[members]] + units.inner[members]
    n_parts = np.bincount(decision.parts["unit"], minlength=len(units)).tolist()
    sizes, tensors, cuts = profile.tensors["nbytes"], units.tensors.tolist(), units.first.tolist()
    base, start, stop, lasting = (x.tolist() for x in (draft.base, units.start, units.stop, units.persistent))
    for unit, page, pages, tier, _ in decision.parts[alone].tolist():
        low, high = page * PAGE_BYTES, (page + pages) * PAGE_BYTES
        inside = tensors[cuts[unit] : cuts[unit + 1]]
        if n_parts[unit] > 1 and len(inside) > 1:
            inner = units.inner[inside]
            inside = units.members(unit)[(inner < high) & (inner + sizes[inside] > low)].tolist()
        name = profile.names[inside[0]] if inside else ""
        name += f"+{len(inside) - 1}" if len(inside) > 1 else ""
        name += f"[{page}:{page + pages}]" if n_parts[unit] > 1 else ""
        draft.blocks.append(
            Block(
                base[unit] + low,
                high - low,
                start[unit],
                stop[unit],
                tier,
                tuple(inside),
                name,
                persistent=lasting[unit],
            )
        )
    return block_of


def _migrations(decision: Decision, block_of: NDArray[np.int64], blocks: list[Block]) -> tuple[Migration, ...]:
    """In submission order: by layer, demotions first, then by rank."""
    moves = decision.moves
    promotes = moves["target"] < moves["source"]
    order = np.lexsort((np.arange(len(moves)), moves["rank"], promotes, moves["start"]))
    of = block_of[moves["part"][order]].tolist()
    return tuple(
        Migration(block, source, target, blocks[block].nbytes, start, due, REASONS[reason])  # type: ignore[arg-type]
        for block, (_, source, target, start, due, reason, _) in zip(of, moves[order].tolist(), strict=True)
    )


def _slots(draft: _Draft, profile: Profile) -> tuple[Slot, ...]:
    t = profile.tensors
    chosen = np.flatnonzero(draft.offset >= 0)
    rows = t[chosen]
    tensors, offsets = chosen.tolist(), draft.offset[chosen].tolist()
    keys = allocation_keys(rows)
    return tuple(map(Slot, tensors, map(profile.names.__getitem__, tensors), keys, offsets, rows["nbytes"].tolist()))


def finalize(plan: Plan, profile: Profile, machine: Machine) -> Plan:
    """`plan` complete and checked. Raises PlanError if it breaks a law."""
    laws.check(plan, profile, machine)
    predicted = plan.predicted_step_ns
    if predicted is None:
        predicted = simulate_lawful(plan, profile, machine).step_ns
    return completed(plan.told(predicted_step_ns=predicted), profile, machine)


def completed(plan: Plan, profile: Profile, machine: Machine) -> Plan:
    """`plan` with its uses, and with what every policy tells in `details`."""
    short = max(min(plan.fast_needed_bytes, plan.footprint_bytes) - machine.fast.capacity_bytes, 0)
    rs = int(short_peaks(profile, short_tensors(profile)).max(initial=0))
    return plan.told(
        uses=block_uses(plan, profile),
        details={
            "mil": None,
            "intervals": None,
            "cases": None,
            **plan.details,
            "rs_bytes": rs,
            "shortfall_bytes": short,
        },
    )


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
    columns = np.stack([moving[name] for name in ("nbytes", "born_event", "died_event")])
    return int(pages[t["persistent"]].sum()) + _packed_bytes(columns.tobytes(), profile.n_events)


@lru_cache(maxsize=2)
def _packed_bytes(columns: bytes, n_events: int) -> int:
    """Of tensors packed by lifetime, from their sizes, births and deaths. Remembered for the last two steps: a job asks
    for its budget, plans, and plans again with other layer times, and each of these begins with it."""
    sizes, births, deaths = np.frombuffer(columns, np.int64).reshape(3, -1)
    return pack_slots(sizes, births, deaths, n_events)[1]


def with_page_tiers(plan: Plan, profile: Profile, tier: np.ndarray, policy: str) -> Plan:
    """An all-fast plan with each page moved to `tier[page]` for good. Blocks are cut where the tier changes."""
    changes = np.flatnonzero(tier[1:] != tier[:-1]) + 1
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
