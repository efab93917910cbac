"""The laws of a Plan. `check` raises PlanError, naming layer, block and rule, at the first one broken.

1 capacity, 2 residence, 3 chain, 4 lifetime, 5 closed, 6 isolation, 9 coverage, 10 sharing, 11 birth. Law 7
(determinism) and 8 (bounds) compare plans and runs; they are property tests.
"""

from __future__ import annotations

import numpy as np

from sentinel.core import addresses
from sentinel.core.errors import PlanError
from sentinel.core.extents import extent_shares
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Migration, Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES


def check(plan: Plan, profile: Profile | None = None, machine: Machine | None = None) -> None:
    """Raise PlanError if `plan` breaks a law.

    A plan by itself does not tell how long a transient lives. So coverage and sharing are known in full only with the
    `profile` that the plan was made for, and residence with a `machine` as well.
    """
    _well_formed(plan)
    addresses.check_slots(plan)
    for index, moves in plan.moves_by_block.items():
        _chain_and_lifetime(plan, index, plan.blocks[index], moves)
    _capacity(plan)
    addresses.check_isolation(plan)
    addresses.check_birth(plan)
    if profile is not None:
        addresses.check_profile(plan, profile)
    addresses.check_coverage(plan, profile)
    addresses.check_sharing(plan, profile)
    if profile is not None and machine is not None:
        _residence(plan, profile, machine)


def _well_formed(plan: Plan) -> None:
    length, tiers = plan.n_layers, len(plan.tier_names)
    if length == 0 or tiers == 0 or len(plan.capacity_bytes) != tiers:
        raise PlanError("a plan needs layers, tiers and one capacity a tier")
    addresses.check_segments(plan)
    extent_bytes = plan.extent_bytes  # walks all segments: once, not per block
    for index, block in enumerate(plan.blocks):
        if block.nbytes <= 0 or block.nbytes % PAGE_BYTES or block.offset % PAGE_BYTES or block.offset < 0:
            raise PlanError("a block is whole pages", block=index)
        if block.offset + block.nbytes > extent_bytes:
            raise PlanError("a block lies outside the arena", block=index)
        if not (0 <= block.start < length and block.start < block.stop <= block.start + length):
            raise PlanError("a block lives for at least one layer and at most one step", block=index)
        if not 0 <= block.tier < tiers:
            raise PlanError("a block is born in a tier that is not there", block=index)
        if (block.persistent or block.fixed) and (block.start, block.stop) != (0, length):
            raise PlanError("a persistent or fixed block lives through the whole step", block=index)
    for move in plan.migrations:
        if not 0 <= move.block < len(plan.blocks):
            raise PlanError(f"a migration names block {move.block}, which is not there")
        if not (0 <= move.source < tiers and 0 <= move.target < tiers) or move.source == move.target:
            raise PlanError("a migration leads from one tier to another", block=move.block)
        if not (0 <= move.start < length and move.start < move.due <= move.start + length):
            raise PlanError("a migration takes at least one layer and at most one step", block=move.block)
        if move.nbytes != plan.blocks[move.block].nbytes:
            raise PlanError("a migration moves its whole block", block=move.block)
        if plan.blocks[move.block].fixed:
            raise PlanError("a fixed block never migrates", block=move.block)


def _chain_and_lifetime(plan: Plan, index: int, block: Block, moves: tuple[Migration, ...]) -> None:
    length = plan.n_layers
    here, free_from = block.tier, block.start
    if block.persistent:
        # where the ring closes: the tier as layer 0 begins is that of the last move due by then
        first, last = moves[0], moves[-1]
        here = last.target
        free_from = plan.unrolled_start(last) + last.due - last.start - length
        if first.start < free_from:
            raise PlanError(
                "closed: the last migration ends after the first one starts", block=index, layer=first.start
            )
        at_zero = last.target if free_from <= 0 else last.source
        if block.tier != at_zero:
            raise PlanError("closed: the block does not end the step where it began it", block=index)
    for move in moves:
        begin = plan.unrolled_start(move)
        if begin < free_from:
            raise PlanError(
                "chain: a migration starts before the one before it has ended", block=index, layer=move.start
            )
        if move.source != here:
            raise PlanError("chain: a migration starts where the block is not", block=index, layer=move.start)
        here, free_from = move.target, begin + move.due - move.start
        if not block.persistent and free_from > block.stop:  # before birth is counted as after death: layers are a ring
            raise PlanError("lifetime: no migration before birth or after death", block=index, layer=move.start)


def _capacity(plan: Plan) -> None:
    over = plan.held_bytes > np.array(plan.capacity_bytes, np.int64)[:, None]
    if over.any():
        tier, layer = (int(x) for x in np.argwhere(over)[0])
        held = int(plan.held_bytes[tier, layer])
        raise PlanError(
            f"capacity: tier {plan.tier_names[tier]} holds {held} bytes of {plan.capacity_bytes[tier]}", layer=layer
        )


def _residence(plan: Plan, profile: Profile, machine: Machine) -> None:
    """A block used in a layer is then in an addressable tier."""
    barred = {i for i, tier in enumerate(machine.tiers) if not tier.addressable}
    if not barred:
        return
    used: dict[int, set[int]] = {}
    for extent, layer in zip(profile.accesses["extent"].tolist(), profile.accesses["layer"].tolist(), strict=True):
        used.setdefault(extent, set()).add(layer)
    block, extents, _ = extent_shares(plan, profile)
    first = np.searchsorted(block, np.arange(len(plan.blocks) + 1))
    for index, tier, start, stop, _, _ in plan.spans.tolist():
        if tier in barred:
            layers = {layer % plan.n_layers for layer in range(start, stop)}
            for extent in extents[first[index] : first[index + 1]].tolist():
                hit = layers & used.get(extent, set())
                if hit:
                    raise PlanError(
                        f"residence: used while in {plan.tier_names[tier]}, which is not addressable",
                        block=index,
                        layer=min(hit),
                    )
