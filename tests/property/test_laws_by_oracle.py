"""`check` against an oracle that walks every layer and every byte: both accept a plan, or both refuse it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.errors import Infeasible, PlanError
from sentinel.core.laws import check
from sentinel.core.plan import Block, LayerId, Migration, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import plan as make_plan
from tests.builders import machines, profiles


class Broken(Exception):
    """The oracle found a law broken."""


def law(holds: bool, rule: str) -> None:
    if not holds:
        raise Broken(rule)


class Cells:
    """Sets of bytes as bits of one number: a bit for each stretch between two neighbouring edges of a plan."""

    def __init__(self, plan: Plan) -> None:
        places = [*plan.segments, *plan.blocks, *plan.slots]
        self.edges = sorted({edge for p in places for edge in (p.offset, p.offset + p.nbytes)})
        self.rank = {edge: i for i, edge in enumerate(self.edges)}

    def of(self, place: Segment | Block | Slot) -> int:
        low, high = self.rank[place.offset], self.rank[place.offset + place.nbytes]
        return (1 << high) - (1 << low)


def oracle(plan: Plan, profile: Profile | None) -> None:
    """Raises Broken if `plan` breaks a law. Slow and plain: every layer, every byte."""
    _well_formed(plan)
    cells, length = Cells(plan), plan.n_layers
    lives = [{layer % length for layer in range(b.start, b.stop)} for b in plan.blocks]
    held = [[0] * length for _ in plan.tier_names]
    for index, block in enumerate(plan.blocks):
        for tier, layer in _residence(plan, index, block):
            held[tier][layer % length] += block.nbytes
    for tier, capacity in enumerate(plan.capacity_bytes):
        law(max(held[tier]) <= capacity, "capacity")
    born = [0] * len(plan.tier_names)
    for segment in plan.segments:
        law(not any(seen & cells.of(segment) for seen in born), "segments are disjoint")
        born[segment.tier] |= cells.of(segment)
    for block in plan.blocks:
        law(not cells.of(block) & ~born[block.tier], "a block is born in its tier")
    for layer in range(length):
        taken = 0
        for index, block in enumerate(plan.blocks):
            if layer in lives[index]:
                law(not taken & cells.of(block), "isolation")
                taken |= cells.of(block)
    _slots(plan, profile)
    for slot in plan.slots:
        for layer in _life(slot, plan, profile):
            room = 0
            for index, block in enumerate(plan.blocks):
                if slot.tensor in block.tensors and layer in lives[index]:
                    room |= cells.of(block)
            law(not cells.of(slot) & ~room, "coverage")
    _sharing(plan, profile, cells)


def _well_formed(plan: Plan) -> None:
    length, tiers = plan.n_layers, len(plan.tier_names)
    for place in (*plan.segments, *plan.blocks):
        law(place.nbytes > 0 and place.nbytes % PAGE_BYTES == place.offset % PAGE_BYTES == 0, "whole pages")
        law(place.offset >= 0 and 0 <= place.tier < tiers, "in the arena, born in a tier")
    for block in plan.blocks:
        law(0 <= block.start < length and 1 <= block.stop - block.start <= length, "a block's life")
        whole = block.start == 0 and block.stop == length
        law(whole or not (block.persistent or block.fixed), "a persistent or fixed block lives on")
        law(len(set(block.tensors)) == len(block.tensors), "a tensor once a block")
        law(set(block.tensors) <= {slot.tensor for slot in plan.slots}, "a block's tensors have slots")
    for move in plan.migrations:
        law(0 <= move.block < len(plan.blocks), "a block that is there")
        block = plan.blocks[move.block]
        law(0 <= move.source < tiers and 0 <= move.target < tiers and move.source != move.target, "from tier to tier")
        law(0 <= move.start < length and 1 <= move.due - move.start <= length, "a move's layers")
        law(move.nbytes == block.nbytes and not block.fixed, "a whole block that is not fixed")


def _residence(plan: Plan, index: int, block: Block) -> Iterable[tuple[int, int]]:
    """(tier, layer) of all layers in which `block` holds room in a tier, walked layer by layer."""
    moves = [move for move in plan.migrations if move.block == index]
    laps = 3 if block.persistent else 1
    tier, begun = block.tier, []
    # What the step before has begun is under way as the first layer begins, as the engine has it (Agenda.crossing).
    crossing = [move for move in moves if block.persistent and move.due > plan.n_layers]
    under_way = (crossing[0].target, crossing[0].due - plan.n_layers) if crossing else None
    found = []
    for layer in range(block.start, block.start + laps * (block.stop - block.start)):
        if under_way is not None and under_way[1] == layer:
            tier, under_way = under_way[0], None
        if block.persistent and layer % plan.n_layers == 0:
            law(tier == block.tier, "a step ends as it began")
        for move in moves:
            if move.start == layer % plan.n_layers:
                law(under_way is None and move.source == tier, "a move starts where the block is")
                under_way = (move.target, layer + move.due - move.start)
                begun.append(move)
        if layer >= block.start + (laps - 1) * plan.n_layers:
            found.append((tier, layer))
            if under_way is not None:
                found.append((under_way[0], layer))
    law(len(begun) == laps * len(moves), "a move within the block's life")
    if not block.persistent and under_way is not None:
        law(under_way[1] <= block.stop, "no move after death")
    return found


def _slots(plan: Plan, profile: Profile | None) -> None:
    arena = max((s.offset + s.nbytes for s in plan.segments), default=0)
    for one, other in itertools.combinations(plan.slots, 2):
        same_key = one.key == other.key if one.key and other.key else one.key is other.key and one.name == other.name
        law(not same_key and one.tensor != other.tensor, "each tensor one slot, each slot one key")
    for slot in plan.slots:
        law(slot.tensor >= 0 and slot.nbytes > 0 and slot.offset >= 0, "a slot of something")
        law(slot.offset + slot.nbytes <= arena, "a slot within the arena")
        law(slot.key is None or 0 <= slot.key[0] < plan.n_layers, "a slot of a layer")
    if profile is None:
        return
    law(plan.n_layers == profile.n_layers, "the profile's layers")
    managed = {i for i, is_managed in enumerate(profile.tensors["managed"]) if is_managed}
    law(managed <= {slot.tensor for slot in plan.slots}, "all managed tensors have slots")
    for slot in plan.slots:
        law(slot.tensor < len(profile.names), "the profile's tensors")
        row = profile.tensors[slot.tensor]
        if slot.tensor not in managed:
            continue
        law(slot.nbytes >= row["nbytes"], "room for the tensor")
        if row["persistent"]:
            law(slot.key is None and slot.name == profile.names[slot.tensor], "the tensor's name")
        else:
            law(slot.key == (row["key_layer"], row["key_ordinal"]), "the tensor's key")


def _life(slot: Slot, plan: Plan, profile: Profile | None) -> set[int]:
    if profile is not None:
        row = profile.tensors[slot.tensor]
        return {layer % plan.n_layers for layer in range(row["start"], row["stop"])}
    return set(range(plan.n_layers)) if slot.key is None else {slot.key[0]}


def _sharing(plan: Plan, profile: Profile | None, cells: Cells) -> None:
    if profile is None:
        for one, other in itertools.combinations(plan.slots, 2):
            law(not ((one.key is None or other.key is None) and cells.of(one) & cells.of(other)), "sharing")
        return
    for event in range(profile.n_events):
        taken = 0
        for slot in plan.slots:
            row = profile.tensors[slot.tensor]
            if (
                row["persistent"]
                or (event - row["born_event"]) % profile.n_events < row["died_event"] - row["born_event"]
            ):
                law(not taken & cells.of(slot), "sharing")
                taken |= cells.of(slot)


def refused_by_oracle(plan: Plan, profile: Profile | None) -> str:
    try:
        oracle(plan, profile)
    except Broken as error:
        return str(error)
    return ""


def refused_by_check(plan: Plan, profile: Profile | None) -> str:
    try:
        check(plan, profile)
    except PlanError as error:
        return str(error)
    return ""


def changed_row(draw: st.DrawFn, plan: Plan, table: str, changes: dict[str, Any]) -> Plan:
    """`plan` with one field of one row of `table` changed; as it was if the table is empty."""
    rows = list(getattr(plan, table))
    if not rows:
        return plan
    index = draw(st.integers(0, len(rows) - 1))
    name = draw(st.sampled_from(sorted(changes)))
    value = changes[name]
    if isinstance(value, st.SearchStrategy):
        value = draw(value)
        if isinstance(value, int) and not isinstance(value, bool) and name != "tensor":
            value += getattr(rows[index], name)
    rows[index] = replace(rows[index], **{name: value})
    return replace(plan, **{table: tuple(rows)})


BYTES = st.sampled_from([-2 * PAGE_BYTES, -PAGE_BYTES, -512, -1, 1, 512, PAGE_BYTES, 2 * PAGE_BYTES])
STEP = st.sampled_from([-2, -1, 1, 2])


def of_a_block(draw: st.DrawFn, plan: Plan) -> Plan:
    tensors = st.lists(st.integers(0, len(plan.slots)), max_size=3).map(tuple)
    return changed_row(
        draw,
        plan,
        "blocks",
        {"offset": BYTES, "nbytes": BYTES, "start": STEP, "stop": STEP, "tier": STEP, "tensors": tensors}
        | {"persistent": st.booleans(), "fixed": st.booleans()},
    )


def of_a_segment(draw: st.DrawFn, plan: Plan) -> Plan:
    return changed_row(draw, plan, "segments", {"offset": BYTES, "nbytes": BYTES, "tier": STEP})


def of_a_slot(draw: st.DrawFn, plan: Plan) -> Plan:
    keys = st.one_of(st.none(), st.tuples(st.integers(-1, plan.n_layers), st.integers(0, 3)))
    tensor = st.integers(-1, len(plan.slots))
    return changed_row(
        draw, plan, "slots", {"offset": BYTES, "nbytes": BYTES, "key": keys, "tensor": tensor, "name": "other"}
    )


def of_a_migration(draw: st.DrawFn, plan: Plan) -> Plan:
    return changed_row(
        draw,
        plan,
        "migrations",
        {"block": STEP, "source": STEP, "target": STEP, "nbytes": BYTES, "start": STEP, "due": STEP},
    )


def of_the_budget(draw: st.DrawFn, plan: Plan) -> Plan:
    room = draw(st.sampled_from([plan.fast_peak_bytes - 1, plan.fast_peak_bytes]))
    return replace(plan, capacity_bytes=(max(room, 0), *plan.capacity_bytes[1:]))


def of_the_slots_of_two(draw: st.DrawFn, plan: Plan) -> Plan:
    """Two tensors change addresses."""
    if len(plan.slots) < 2:
        return plan
    i, k = draw(st.permutations(range(len(plan.slots))))[:2]
    slots = list(plan.slots)
    slots[i], slots[k] = replace(slots[i], offset=slots[k].offset), replace(slots[k], offset=slots[i].offset)
    return replace(plan, slots=tuple(slots))


def without_a_row(draw: st.DrawFn, plan: Plan) -> Plan:
    table = draw(st.sampled_from(["segments", "slots", "blocks", "migrations"]))
    rows = list(getattr(plan, table))
    if not rows:
        return plan
    index = draw(st.integers(0, len(rows) - 1))
    if table == "blocks":  # later ones move up, so the moves must follow
        moves = [m for m in plan.migrations if m.block != index]
        plan = replace(plan, migrations=tuple(replace(m, block=m.block - (m.block > index)) for m in moves))
    del rows[index]
    return replace(plan, **{table: tuple(rows)})


def with_a_row_twice(draw: st.DrawFn, plan: Plan) -> Plan:
    table = draw(st.sampled_from(["segments", "slots", "blocks", "migrations"]))
    rows = getattr(plan, table)
    if not rows:
        return plan
    return replace(plan, **{table: (*rows, draw(st.sampled_from(rows)))})


def with_a_move_more(draw: st.DrawFn, plan: Plan) -> Plan:
    """A block that never moves leaves its tier and comes back, or a transient leaves it."""
    still = [i for i, block in enumerate(plan.blocks) if i not in plan.moves_by_block and not block.fixed]
    if not still:
        return plan
    index = draw(st.sampled_from(still))
    block, layer = plan.blocks[index], st.integers(0, plan.n_layers - 1)
    there = 1 if block.tier == 0 else 0
    start, width = draw(layer), draw(st.integers(1, plan.n_layers))
    moves = [Migration(index, block.tier, there, block.nbytes, start, start + width, "evict")]
    if draw(st.booleans()):
        start, width = draw(layer), draw(st.integers(1, plan.n_layers))
        moves.append(Migration(index, there, block.tier, block.nbytes, start, start + width, "prefetch"))
    return replace(plan, migrations=(*plan.migrations, *moves))


def without_blocks(draw: st.DrawFn, plan: Plan) -> Plan:
    return replace(plan, blocks=(), migrations=())


def without_slots(draw: st.DrawFn, plan: Plan) -> Plan:
    return replace(plan, slots=())


def with_all_slots_at_the_beginning(draw: st.DrawFn, plan: Plan) -> Plan:
    return replace(plan, slots=tuple(replace(slot, offset=0) for slot in plan.slots))


WAYS = (
    *(of_a_block, of_a_segment, of_a_slot, of_a_migration, of_the_budget, of_the_slots_of_two, without_a_row),
    *(with_a_row_twice, with_a_move_more, without_blocks, without_slots, with_all_slots_at_the_beginning),
)
POLICIES = ("sentinel", "sentinel-2021", "next-use", "lru", "first-touch", "interleave", "all-slow")


@st.composite
def sound(draw: st.DrawFn) -> tuple[Plan, Profile]:
    profile, machine = draw(profiles(max_layers=6, max_tensors=6)), draw(machines())
    try:
        return make_plan(profile, machine, draw(st.sampled_from(POLICIES))), profile
    except Infeasible:  # pragma: no cover: none of these policies needs the whole footprint
        raise AssertionError("a plan within any budget") from None


@pytest.mark.parametrize(("due", "broken"), [(5, False), (6, True)])
def test_a_block_that_arrives_after_the_steps_end_may_leave_again(due: int, broken: bool) -> None:
    block = Block(0, PAGE_BYTES, 0, 4, 0, (0,), "p0", persistent=True)
    moves = (Migration(0, 0, 1, PAGE_BYTES, 2, due, "evict"), Migration(0, 1, 0, PAGE_BYTES, 1, 2, "prefetch"))
    layers = tuple(LayerId(f"layer{i}", 0, "") for i in range(4))
    made = Plan(
        policy="by hand",
        layers=layers,
        tier_names=("fast", "slow"),
        capacity_bytes=(PAGE_BYTES, PAGE_BYTES),
        segments=(Segment(0, PAGE_BYTES, 0),),
        slots=(Slot(0, "p0", None, 0, 1),),
        blocks=(block,),
        migrations=moves,
        footprint_bytes=PAGE_BYTES,
        fast_needed_bytes=PAGE_BYTES,
    )
    assert bool(refused_by_oracle(made, None)) == bool(refused_by_check(made, None)) == broken


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_changed_plan_is_refused_by_both_or_by_none(data):
    plan, profile = data.draw(sound())
    assert refused_by_oracle(plan, profile) == refused_by_check(plan, profile) == ""
    for change in WAYS:
        made = change(data.draw, plan)
        for known in (profile, None):
            slow, quick = refused_by_oracle(made, known), refused_by_check(made, known)
            assert bool(slow) == bool(quick), (change.__name__, slow, quick)
