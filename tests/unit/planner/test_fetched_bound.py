"""The bound of plans where slow memory cannot be used in place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sentinel.planner import bound, plan
from sentinel.planner.assemble import footprint_bytes
from sentinel.planner.fetched_bound import fetched_bound_ns
from tests.builders import MIB, TensorSpec, act, make_machine, make_profile, param
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


def test_what_nobody_uses_needs_no_fast_memory():
    idle = make_profile([*(param(n, 4 * MIB, [k]) for k, n in enumerate("ab")), TensorSpec("t", 4 * MIB, 0, 1, {})], 6)
    machine = make_machine(8 * MIB, promote=PER_S, demote=PER_S, addressable=False)
    assert fetched_bound_ns(idle, machine, 60, always) <= 6_000_000


def test_long_lived_tensors_that_share_room_by_events_count_once_however_many_there_are():
    """`a` dies in the layer that `b` is born in, before it: all fits, so no step is longer than its operators."""
    length = 200
    busy = [layer for layer in range(length) if not 152 < layer < 156]
    specs = [act("a", 4 * MIB, 0, 155, [154]), act("b", 4 * MIB, 154, 199, [198]), param("p", 4 * MIB, busy)]
    profile = make_profile([*specs, *(act(f"f{i}", 1 << 16, i % 45, i % 45 + 150) for i in range(250))], length)
    a, b = (profile.names.index(name) for name in "ab")
    profile.tensors["died_event"][a] = profile.tensors["born_event"][b]
    machine = make_machine(footprint_bytes(profile), promote=PER_S, demote=PER_S, addressable=False)
    assert fetched_bound_ns(profile, machine, 60, always) <= int(profile.layer_ns.sum())


def test_of_two_tiers_that_are_not_used_in_place_nothing_is_known():
    three = three_tiers(6 * MIB)
    barred = tuple(replace(tier, addressable=False) for tier in three.tiers[1:])
    assert fetched_bound_ns(IN_TURN, replace(three, tiers=(three.tiers[0], *barred)), 60, always) == 0


def test_without_time_and_where_a_slower_tier_is_used_in_place_nothing_is_known():
    machine = make_machine(6 * MIB, promote=PER_S, demote=PER_S, addressable=False)
    assert fetched_bound_ns(IN_TURN, machine, 60, lambda: 0.0) == 0
    assert fetched_bound_ns(IN_TURN, machine, 0.0, always) == 0
    assert fetched_bound_ns(IN_TURN, three_tiers(6 * MIB), 60, always) == 0
