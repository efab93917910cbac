"""Decisions as plans: addresses, blocks, migrations; and what a finished plan is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.errors import PlanError
from sentinel.planner.assemble import assemble, fast_needed_bytes, finalize, one_tier
from sentinel.planner.decision import MOVE_DTYPE, PART_DTYPE, Decision, no_moves, whole_parts
from sentinel.planner.workload import make_units
from tests.builders import act, make_machine, make_profile, param

PAGE = 4096
LARGE = 16 * PAGE


def assembled(profile, machine, decision):
    units = make_units(profile)
    return assemble(decision, units, profile, machine, policy="test", footprint_bytes=0)


def test_a_split_unit_has_a_block_for_each_part_and_one_address():
    profile = make_profile([param("p", LARGE, [0])], 2)
    parts = np.array([(0, 0, 4, 0, False), (0, 4, 12, 1, False)], PART_DTYPE)
    plan = assembled(profile, make_machine(), Decision(parts, no_moves(), np.zeros(0, np.int64)))
    assert [(b.offset, b.nbytes, b.tier, b.name) for b in plan.blocks] == [
        (0, 4 * PAGE, 0, "p[0:4]"),
        (4 * PAGE, 12 * PAGE, 1, "p[4:16]"),
    ]
    assert [(s.offset, s.nbytes) for s in plan.slots] == [(0, LARGE)]
    assert [(s.offset, s.nbytes, s.tier) for s in plan.segments] == [(0, 4 * PAGE, 0), (4 * PAGE, 12 * PAGE, 1)]


def test_migrations_are_in_the_order_of_their_layers_demotions_first_then_by_rank():
    profile = make_profile([param(name, LARGE, [0]) for name in "abc"], 4)
    units = make_units(profile)
    assert len(units) == 3
    moves = np.array(
        [(0, 1, 0, 1, 2, 0, -5.0), (1, 1, 0, 1, 2, 0, -9.0), (2, 0, 1, 1, 2, 1, 0.0), (2, 1, 0, 0, 1, 0, 0.0)],
        MOVE_DTYPE,
    )
    plan = assembled(profile, make_machine(), Decision(whole_parts(units, 1), moves, np.zeros(0, np.int64)))
    assert [(m.block, m.start, m.target, m.reason) for m in plan.migrations] == [
        (2, 0, 0, "prefetch"),
        (2, 1, 1, "evict"),
        (1, 1, 0, "prefetch"),
        (0, 1, 0, "prefetch"),
    ]
    assert {m.nbytes for m in plan.migrations} == {LARGE}


def test_fast_memory_needed_is_the_largest_reserve_and_the_largest_long_lived_tensor():
    specs = [
        act("s", PAGE, 0, 1),
        act("t", PAGE, 0, 1),
        act("u", PAGE, 1, 2),
        param("p", LARGE, [0]),
        param("q", 1, [1]),
    ]
    profile = make_profile(specs, 3)
    assert fast_needed_bytes(profile, make_units(profile)) == 2 * PAGE + LARGE


def test_a_finished_plan_knows_its_uses_its_time_and_what_it_lacks():
    profile = make_profile([param("p", LARGE, [0, 1]), act("t", PAGE, 1, 2)], 2)
    machine = make_machine(4 * PAGE)
    made = finalize(one_tier(profile, machine, 1, "test"), profile, machine)
    assert made.predicted_step_ns > profile.layer_ns.sum()
    assert made.details["rs_bytes"] == PAGE
    assert made.details["shortfall_bytes"] == LARGE + PAGE - 4 * PAGE
    assert len(made.uses) == 3  # (block, layer) pairs: `p` in both, `t` in one


def test_a_plan_that_breaks_a_law_is_not_finished():
    profile = make_profile([param("p", LARGE, [0])], 2)
    machine = make_machine(LARGE)
    plan = one_tier(profile, machine, 0, "test")
    with pytest.raises(PlanError):
        finalize(replace(plan, blocks=()), profile, machine)
    with pytest.raises(PlanError):
        finalize(replace(plan, capacity_bytes=(LARGE - PAGE, LARGE)), profile, machine)
