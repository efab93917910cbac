"""Each law of a Plan, broken alone, is named with its layer and block; the plan they start from keeps them all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot, ring_sum
from sentinel.core.units import PAGE_BYTES
from sentinel.core.uses import block_uses
from sentinel.simulator import simulate
from tests.builders import MIB, act, make_machine, make_profile, param, persistent_plan
from tests.unit.engine_builders import transient_plan

LAYERS = 6


def sound() -> Plan:
    """Two parameters of 1 MiB take turns in a fast tier of 2 MiB: a leaves in layer 1, comes back in layer 4."""
    profile = make_profile([param("a", MIB, [0, 5]), param("b", MIB, [2, 3])], LAYERS)
    moves = [(0, 0, 1, 1, 2), (0, 1, 0, 4, 5), (1, 1, 0, 2, 3), (1, 0, 1, 3, 4)]
    return persistent_plan(profile, [0, 1], moves, fast_bytes=2 * MIB)


def test_the_plan_keeps_every_law() -> None:
    check(sound())


def with_move(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        moves = list(plan.migrations)
        moves[index] = replace(moves[index], **changes)
        return replace(plan, migrations=tuple(moves))

    return change


def with_block(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        blocks = list(plan.blocks)
        blocks[index] = replace(blocks[index], **changes)
        return replace(plan, blocks=tuple(blocks))

    return change


def with_slot(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        slots = list(plan.slots)
        slots[index] = replace(slots[index], **changes)
        return replace(plan, slots=tuple(slots))

    return change


def with_segment(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        segments = list(plan.segments)
        segments[index] = replace(segments[index], **changes)
        return replace(plan, segments=tuple(segments))

    return change


def without_tensors(plan: Plan) -> Plan:
    """Blocks that name no tensor: slots without a home."""
    return replace(plan, blocks=tuple(replace(block, tensors=()) for block in plan.blocks))


BROKEN: dict[str, Callable[[Plan], Plan]] = {
    "capacity: tier fast": lambda plan: replace(plan, capacity_bytes=(MIB - 1, 1 << 40)),
    "chain: a migration starts where the block is not": with_move(0, source=1, target=0),
    "chain: a migration starts before the one before": with_move(1, start=1, due=5),
    "closed: the block does not end": with_block(0, tier=1),
    "closed: the last migration ends after": with_move(1, start=4, due=8),
    "isolation: shares pages": with_block(1, offset=0),
    "a block is whole pages": with_block(0, nbytes=MIB + 1),
    "a block lies outside the arena": with_block(1, offset=MIB + PAGE_BYTES),
    "at least one layer and at most one step": with_block(0, stop=LAYERS + 1),
    "a tier that is not there": with_block(0, tier=2),
    "a block names a tensor twice": with_block(0, tensors=(0, 0)),
    "a block names tensor 2, which has no slot": with_block(0, tensors=(0, 2)),
    "a migration takes at least one layer": with_move(0, due=1),
    "a migration moves its whole block": with_move(0, nbytes=4096),
    "a migration leads from one tier to another": with_move(0, target=0),
    "names block 9": with_move(0, block=9),
    "a fixed block never migrates": with_block(0, fixed=True),
    "lives through the whole step": with_block(0, stop=3),
    "two slots answer": with_slot(1, name="a"),
    "is of tensor 0, which has another slot": with_slot(1, tensor=0),
    "is of tensor -1, which": with_slot(1, tensor=-1),
    "slot 'b' lies outside the arena": with_slot(1, nbytes=MIB + 1),
    "is of a layer that is not there": with_slot(1, key=(LAYERS, 0)),
    "segment 0 is not whole pages": with_segment(0, nbytes=MIB - 512),
    "segment 1 is born in a tier": with_segment(1, tier=-1),
    "segments 0 and 1 share pages": with_segment(0, nbytes=MIB + PAGE_BYTES),
    "larger than any machine": with_segment(1, nbytes=1 << 61),
    "birth: not all its pages": with_segment(0, tier=1),
    "coverage: blocks hold 0 of the 1048576 bytes of slot 'a'": without_tensors,
    "coverage: blocks hold 4096 of the 1048576 bytes of slot 'b'": with_slot(1, offset=PAGE_BYTES),
    "sharing: slots 'a' and 'b' share bytes": lambda plan: with_slot(1, offset=0)(
        with_block(0, tensors=(0, 1))(with_block(1, tensors=())(plan))
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_law_is_named(rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        check(BROKEN[rule](sound()))


def with_two_segments_for_a(first_bytes: int, second_offset: int) -> Callable[[Plan], Plan]:
    """The fast segment of block 0 in two, with a gap between them unless they meet."""
    pieces = (Segment(0, first_bytes, 0), Segment(second_offset, MIB - second_offset, 0))
    return lambda plan: replace(plan, segments=(*pieces, *plan.segments[1:]))


CLOSELY_BROKEN: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "a segment begins within a page": (
        "segment 0 is not whole pages",
        with_segment(0, offset=512, nbytes=MIB - PAGE_BYTES),
    ),
    "the last page of a block is in no segment": ("birth", with_segment(0, nbytes=MIB - PAGE_BYTES)),
    "a page within a block is in no segment": ("birth", with_two_segments_for_a(PAGE_BYTES, 2 * PAGE_BYTES)),
    "a byte of a slot is in no block of its own": (
        "coverage: blocks hold 1048575 of the 1048576 bytes of slot 'b'",
        with_slot(1, offset=MIB - 1),
    ),
    "a transient reaches into a persistent tensor": (
        "sharing: slots 'a' and (1, 0)",
        lambda plan: in_one_block(with_slot(1, key=(1, 0), offset=PAGE_BYTES, nbytes=PAGE_BYTES)(plan)),
    ),
    "a persistent tensor reaches into a transient": (
        "sharing: slots (1, 0) and 'b'",
        lambda plan: in_one_block(
            with_slot(0, key=(1, 0), nbytes=2 * PAGE_BYTES)(
                with_slot(1, offset=2 * PAGE_BYTES - 1, nbytes=PAGE_BYTES)(plan)
            )
        ),
    ),
}


def in_one_block(plan: Plan) -> Plan:
    """Both tensors in block 0."""
    return with_block(0, tensors=(0, 1))(with_block(1, tensors=())(plan))


@pytest.mark.parametrize("case", CLOSELY_BROKEN)
def test_laws_hold_to_the_byte(case: str) -> None:
    rule, change = CLOSELY_BROKEN[case]
    with pytest.raises(PlanError, match=re.escape(rule)):
        check(change(sound()))


def test_segments_of_one_tier_that_meet_are_as_good_as_one() -> None:
    check(with_two_segments_for_a(PAGE_BYTES, PAGE_BYTES)(sound()))


@pytest.mark.parametrize(
    ("tensor", "block"),
    [
        pytest.param((5, 7), (0, 6), id="a tensor wraps, its block does not"),
        pytest.param((0, 1), (5, 7), id="a block wraps, its tensor does not"),
        pytest.param((5, 7), (4, 8), id="both wrap"),
    ],
)
def test_a_home_is_counted_round_the_ring(tensor: tuple[int, int], block: tuple[int, int]) -> None:
    profile = make_profile([act("x", MIB, *tensor)], LAYERS)
    plan = with_block(0, start=block[0], stop=block[1])(transient_plan(profile, [0], fast_bytes=MIB))
    check(plan, profile)
    shorter = with_block(0, start=block[0], stop=block[1] - 1)(plan)
    wanted = {layer % LAYERS for layer in range(*tensor)}
    if wanted <= {layer % LAYERS for layer in range(block[0], block[1] - 1)}:
        check(shorter, profile)
    else:
        with pytest.raises(PlanError, match="coverage"):
            check(shorter, profile)


def with_a_transient(**move: int) -> Plan:
    """The sound plan and a slow transient of layers 1 and 2 that becomes fast as `move` says."""
    profile = make_profile([param("a", MIB, [0]), act("late", PAGE_BYTES, 1, 3)], LAYERS)
    plan = transient_plan(profile, [1, 1], fast_bytes=MIB)
    return replace(plan, migrations=(Migration(1, 1, 0, PAGE_BYTES, reason="prefetch", **move),))


def test_a_transient_may_move_until_its_death() -> None:
    check(with_a_transient(start=1, due=3))


@pytest.mark.parametrize(
    "move",
    [
        pytest.param({"start": 1, "due": 4}, id="ends a layer after death"),
        pytest.param({"start": 2, "due": 5}, id="ends two layers after death"),
        pytest.param({"start": 0, "due": 2}, id="starts before birth"),
        pytest.param({"start": 0, "due": 1}, id="ends at birth"),
        pytest.param({"start": 3, "due": 4}, id="starts at death"),
    ],
)
def test_no_migration_before_birth_or_after_death(move: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="lifetime"):
        check(with_a_transient(**move))


HOMELESS: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "no blocks": ("coverage: blocks hold 0", lambda plan: replace(plan, blocks=(), migrations=())),
    "no slots": (
        "coverage: a has no slot",
        lambda plan: without_tensors(replace(plan, slots=())),
    ),
    "all slots at one place": (
        "coverage: blocks hold 0",
        lambda plan: replace(plan, slots=tuple(replace(slot, offset=0) for slot in plan.slots)),
    ),
    "all slots at one place, in one block": (
        "sharing: slots 'a' and 'b'",
        lambda plan: with_block(0, tensors=(0, 1))(
            replace(plan, slots=tuple(replace(slot, offset=0) for slot in plan.slots))
        ),
    ),
    "a slot smaller than its tensor": ("the slot of a has 1048575 bytes", with_slot(0, nbytes=MIB - 1)),
    "a slot of another name": ("the slot of b answers to 'c'", with_slot(1, name="c")),
    "a transient's slot for a persistent tensor": ("the slot of a answers to (0, 1)", with_slot(0, key=(0, 1))),
    "a slot of a tensor that is not there": (
        "a slot is of tensor 7",
        lambda plan: with_slot(1, tensor=7)(with_block(1, tensors=(7,))(plan)),
    ),
}


@pytest.mark.parametrize("case", HOMELESS)
def test_every_managed_tensor_has_bytes_of_its_own(case: str) -> None:
    profile = make_profile([param("a", MIB, [0, 5]), param("b", MIB, [2, 3])], LAYERS)
    rule, change = HOMELESS[case]
    check(sound(), profile)
    with pytest.raises(PlanError, match=re.escape(rule)):
        check(change(sound()), profile)
    with pytest.raises(PlanError, match=re.escape(rule)):
        simulate(change(sound()), profile, make_machine())


def test_a_block_that_dies_before_its_tensor_is_no_home() -> None:
    profile = make_profile([act("x", MIB, 1, 4)], LAYERS)
    plan = transient_plan(profile, [0], fast_bytes=MIB)
    check(plan, profile)
    early = with_block(0, stop=3)(plan)
    check(early)  # the plan alone does not tell how long x lives
    with pytest.raises(PlanError, match=r"coverage: blocks hold 0 of the 1048576 bytes of slot \(1, 0\)") as error:
        check(early, profile)
    assert error.value.layer == 3


@pytest.mark.parametrize(("early", "lawful"), [(True, True), (False, False)], ids=["in turn", "together"])
def test_tensors_of_one_layer_share_bytes_only_in_turn(early: bool, lawful: bool) -> None:
    profile = make_profile([act("x", MIB, 1, 2, dies_early=early), act("y", MIB, 1, 2)], LAYERS)
    plan = with_block(0, start=0, stop=LAYERS, fixed=True, tensors=(0, 1))(
        transient_plan(profile, [0, 0], fast_bytes=MIB)
    )
    plan = with_slot(1, offset=0)(replace(plan, blocks=plan.blocks[:1]))
    if lawful:
        check(plan, profile)
        return
    with pytest.raises(PlanError, match="sharing"):
        check(plan, profile)


def test_what_is_used_must_be_addressable() -> None:
    profile = make_profile([param("a", MIB, [3])], LAYERS)
    plan = persistent_plan(profile, [1])
    check(plan, profile, make_machine())
    with pytest.raises(PlanError, match=r"residence.*not addressable") as error:
        check(plan, profile, make_machine(addressable=False))
    assert (error.value.layer, error.value.block) == (3, 0)


@pytest.mark.parametrize(("leaves", "lawful"), [(2, False), (3, True)], ids=["in its layer", "behind it"])
def test_what_leaves_in_the_layer_that_uses_it_is_used_where_it_goes(leaves: int, lawful: bool) -> None:
    profile = make_profile([param("a", MIB, [2])], LAYERS)
    plan = persistent_plan(profile, [0], [(0, 0, 1, leaves, leaves + 1), (0, 1, 0, 5, 6)], fast_bytes=MIB)
    machine = make_machine(MIB, addressable=False)
    if lawful:
        check(plan, profile, machine)
        return
    with pytest.raises(PlanError, match=r"residence.*not addressable") as error:
        check(plan, profile, machine)
    assert error.value.layer == 2


def test_placement_follows_the_migrations_round_the_ring() -> None:
    assert sound().placement.tolist() == [[0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 1, 1]]


def test_what_is_in_flight_counts_on_both_sides() -> None:
    # a: fast 0-1 and from 4 on; b: fast 2-3. Slow: a 1-4, b always but 3.
    assert (sound().held_bytes // MIB).tolist() == [[1, 1, 1, 1, 1, 1], [1, 2, 2, 2, 2, 1]]


def test_a_migration_may_cross_the_end_of_the_step() -> None:
    profile = make_profile([param("a", MIB, [2])], LAYERS)
    plan = persistent_plan(profile, [0], [(0, 1, 0, 5, 7), (0, 0, 1, 3, 4)], fast_bytes=MIB)
    with pytest.raises(PlanError, match="closed"):
        check(plan)  # as layer 0 begins the block is still slow
    plan = with_segment(0, tier=1)(with_block(0, tier=1)(plan))
    check(plan)
    assert plan.placement.tolist() == [[1, 0, 0, 0, 1, 1]]


def test_uses_are_spread_by_bytes_over_the_blocks_of_a_tensor() -> None:
    profile = make_profile([param("a", 4 * MIB, [1]), act("x", MIB, 2, 4, reads=[3])], LAYERS)
    base = persistent_plan(make_profile([param("a", 4 * MIB, [1])], LAYERS), [0])
    halves = (
        Block(0, MIB, 0, LAYERS, 0, (0,), "a[0]", persistent=True),
        Block(MIB, 3 * MIB, 0, LAYERS, 1, (0,), "a[1]", persistent=True),
        Block(4 * MIB, MIB, 2, 4, 0, (1,), "x"),
    )
    slots = (*base.slots, Slot(1, "x", (2, 0), 4 * MIB, MIB))
    uses = block_uses(replace(base, blocks=halves, slots=slots), profile)
    assert uses[["block", "layer", "read_bytes", "written_bytes"]].tolist() == [
        (0, 1, MIB, 0),
        (1, 1, 3 * MIB, 0),
        (2, 2, 0, MIB),
        (2, 3, MIB, 0),
    ]


@given(st.data())
def test_ring_sums_equal_a_slow_oracle(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 7))
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(-length, 2 * length), st.integers(0, length), st.integers(0, 99))
        )
    )
    columns = [np.array([span[i] for span in spans], np.int64) for i in range(4)]
    got = ring_sum(columns[0], columns[1], columns[1] + columns[2], columns[3], 3, length)
    want = np.zeros((3, length), np.int64)
    for row, start, width, weight in spans:
        for layer in range(start, start + width):
            want[row, layer % length] += weight
    assert got.tolist() == want.tolist()
