"""The bound of plans where slow memory cannot be used in place."""

from __future__ import annotations

import math

import pytest

from sentinel.planner import bound, plan
from sentinel.planner.fetched_bound import fetched_bound_ns
from tests.builders import MIB, make_machine, make_profile, param
from tests.three_tiers import three_tiers

IN_TURN = make_profile([param(name, 4 * MIB, [3 * i]) for i, name in enumerate("abc")], 9)
PER_S = 4 * MIB * 1_000_000_000 // 6_000_000  # a tensor takes six layers


def always() -> float:
    return math.inf


@pytest.mark.parametrize("full_duplex", [True, False])
def test_the_bound_is_what_the_best_plan_takes(full_duplex):
    machine = make_machine(6 * MIB, promote=PER_S, demote=PER_S, addressable=False, full_duplex=full_duplex)
    found, made = fetched_bound_ns(IN_TURN, machine, 60, always), plan(IN_TURN, machine)
    assert found > 9_000_000 * 1.2
    assert 0.99 < found / made.predicted_step_ns <= 1
    assert bound(IN_TURN, machine).step_ns == found


def test_sizes_that_are_no_whole_pages_count_as_they_are():
    odd = make_profile([param(name, 4 * MIB + 1, [3 * i]) for i, name in enumerate("abc")], 9)
    machine = make_machine(6 * MIB, promote=PER_S, demote=PER_S, addressable=False)
    found = fetched_bound_ns(odd, machine, 60, always)
    assert fetched_bound_ns(IN_TURN, machine, 60, always) * 0.99 < found <= plan(odd, machine).predicted_step_ns


def test_without_time_and_where_a_slower_tier_is_used_in_place_nothing_is_known():
    machine = make_machine(6 * MIB, promote=PER_S, demote=PER_S, addressable=False)
    assert fetched_bound_ns(IN_TURN, machine, 60, lambda: 0.0) == 0
    assert fetched_bound_ns(IN_TURN, machine, 0.0, always) == 0
    assert fetched_bound_ns(IN_TURN, three_tiers(6 * MIB), 60, always) == 0
