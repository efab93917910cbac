"""Each law of a Plan, broken alone, is named with its layer and block; the plan they start from keeps them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.plan import Block, Migration, Plan, Slot, ring_sum
from sentinel.core.uses import block_uses
from tests.builders import MIB, act, make_machine, make_profile, param, persistent_plan

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


BROKEN: dict[str, Callable[[Plan], Plan]] = {
    "capacity: tier fast": lambda plan: replace(plan, capacity_bytes=(MIB - 1, 1 << 40)),
    "chain: a migration starts where the block is not": with_move(0, source=1, target=0),
    "chain: a migration starts before the one before": with_move(1, start=1, due=5),
    "closed: the block does not end": with_block(0, tier=1),
    "closed: the last migration ends after": with_move(1, start=4, due=8),
    "isolation: shares pages": with_block(1, offset=0),
    "a block is whole pages": with_block(0, nbytes=MIB + 1),
    "at least one layer and at most one step": with_block(0, stop=LAYERS + 1),
    "a tier that is not there": with_block(0, tier=2),
    "a migration takes at least one layer": with_move(0, due=1),
    "a migration moves its whole block": with_move(0, nbytes=4096),
    "a migration leads from one tier to another": with_move(0, target=0),
    "names block 9": with_move(0, block=9),
    "a fixed block never migrates": with_block(0, fixed=True),
    "lives through the whole step": with_block(0, stop=3),
    "two slots answer": lambda plan: replace(plan, slots=(*plan.slots, plan.slots[0])),
    "lies outside the arena": lambda plan: replace(plan, slots=(Slot(0, "far", None, 1 << 40, 1),)),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_law_is_named(rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        check(BROKEN[rule](sound()))


def test_no_migration_after_death() -> None:
    plan = sound()
    block = Block(plan.extent_bytes, 4096, 1, 3, 1, (), "late")
    late = Migration(2, 1, 0, 4096, 2, 5, "prefetch")
    with pytest.raises(PlanError, match="lifetime"):
        check(replace(plan, blocks=(*plan.blocks, block), migrations=(*plan.migrations, late)))


def test_what_is_used_must_be_addressable() -> None:
    profile = make_profile([param("a", MIB, [3])], LAYERS)
    plan = persistent_plan(profile, [1])
    check(plan, profile, make_machine())
    with pytest.raises(PlanError, match=r"residence.*not addressable") as error:
        check(plan, profile, make_machine(addressable=False))
    assert (error.value.layer, error.value.block) == (3, 0)


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
    plan = replace(plan, blocks=(replace(plan.blocks[0], tier=1),))
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
