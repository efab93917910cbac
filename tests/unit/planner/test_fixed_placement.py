"""Plans whose pages stay where they are."""

from __future__ import annotations

import numpy as np

from sentinel.core.laws import check
from sentinel.planner.assemble import footprint_bytes, one_tier, with_page_tiers
from tests.builders import act, make_machine, make_profile, param

PAGE = 4096


def test_the_footprint_is_whole_pages_of_what_persists_and_the_packed_rest():
    profile = make_profile([param("p", 1, [0]), act("a", PAGE, 0, 1), act("b", PAGE, 1, 2)], 2)
    assert footprint_bytes(profile) == 2 * PAGE  # `a` and `b` are never alive together
    assert one_tier(profile, make_machine(), 0, "test").footprint_bytes == 2 * PAGE
    assert footprint_bytes(make_profile([], 2)) == 0


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
