"""Plans whose pages stay where they are."""

from __future__ import annotations

import numpy as np

from sentinel.core.laws import check
from sentinel.planner.fixed_placement import footprint_bytes, one_tier, tiers_by_benefit, with_page_tiers
from tests.builders import act, make_machine, make_profile, param

PAGE = 4096


def test_the_footprint_is_whole_pages_of_what_persists_and_the_packed_rest():
    profile = make_profile([param("p", 1, [0]), act("a", PAGE, 0, 1), act("b", PAGE, 1, 2)], 2)
    assert footprint_bytes(profile) == 2 * PAGE  # `a` and `b` are never alive together
    assert one_tier(profile, make_machine(), 0, "test").footprint_bytes == 2 * PAGE


def test_a_block_is_cut_where_the_tier_of_its_pages_changes():
    profile = make_profile([param("p", 4 * PAGE, [0])], 2)
    machine = make_machine(2 * PAGE)
    plan = with_page_tiers(one_tier(profile, machine, 0, "x"), profile, np.array([0, 1, 1, 0]), "test")
    assert [(b.offset // PAGE, b.nbytes // PAGE, b.tier, b.name) for b in plan.blocks] == [
        (0, 1, 0, "p[0:1]"),
        (1, 2, 1, "p[1:3]"),
        (3, 1, 0, "p[3:4]"),
    ]
    assert [(s.offset // PAGE, s.tier) for s in plan.segments] == [(0, 0), (1, 1), (3, 0)]
    check(plan, profile, machine)


def test_the_pages_that_save_most_are_fast():
    """One of three pages: that of the tensor that is read in every layer."""
    profile = make_profile(
        [param("once", PAGE, [0]), param("always", PAGE, [0, 1, 2]), param("twice", PAGE, [0, 1])], 3
    )
    machine = make_machine(PAGE)
    assert tiers_by_benefit(one_tier(profile, machine, 0, "x"), profile, machine).tolist() == [1, 0, 1]


def test_a_page_that_two_tensors_share_in_turn_counts_for_both():
    specs = [act("a", PAGE, 0, 1, [0]), act("b", PAGE, 1, 2, [1]), param("p", PAGE, [0])]
    profile, machine = make_profile(specs, 2), make_machine(PAGE)
    plan = one_tier(profile, machine, 0, "x")
    shared = next(slot.offset for slot in plan.slots if slot.name == "a") // PAGE
    assert tiers_by_benefit(plan, profile, machine)[shared] == 0
