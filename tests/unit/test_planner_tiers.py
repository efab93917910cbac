"""Plans on machines with more than two tiers, small enough to be known without a planner."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, replace

import numpy as np
import pytest

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.machine import Link, TierSpec
from sentinel.core.uses import block_uses
from sentinel.planner import POLICIES, bound, footprint_bytes, plan
from sentinel.planner.static_placements import fill_tiers
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param
from tests.three_tiers import only, three_tiers
from tests.unit.test_extents import table_profile
from tests.unit.test_planner import network

TWO_TIERS = {
    "capuchin": "ef542e28bba6f4aa",
    "first-touch": "8ae5a1494acad156",
    "interleave": "49d3cf8b83b72082",
    "lru": "e909423d0d76af08",
    "next-use": "fb33c0e2c12fdb77",
    "sentinel-2021": "1dd7868fd3cc5500",
    "static": "bff6c66f8986b7a0",
    "weighted-interleave": "2ee5bf0fa59255aa",
    "all-slow": "55f3586c5cadf8d3",
}
"""Digests of plans from before there were homes, of the policies that need no solver; of `sentinel-2021` since it
evicts lazily."""


def where(made, name):
    """Tiers of birth of the blocks of one tensor."""
    (tensor,) = (slot.tensor for slot in made.slots if slot.name == name)
    return {block.tier for block in made.blocks if tensor in block.tensors}


def digest(made):
    parts = tuple(tuple(map(astuple, getattr(made, part))) for part in ("segments", "slots", "blocks", "migrations"))
    told = repr((*parts, made.predicted_step_ns)).encode() + made.uses.tobytes()
    return hashlib.sha256(told).hexdigest()[:16]


@pytest.mark.parametrize("policy", sorted(TWO_TIERS))
def test_plans_for_two_tiers_are_what_they_were(policy):
    profile = network()
    machine = make_machine(footprint_bytes(profile) // 5, promote=8 * GB, demote=4 * GB, slow_bw=8 * GB)
    assert digest(plan(profile, machine, policy)) == TWO_TIERS[policy]


@pytest.mark.parametrize("share", [10, 40])
def test_a_middle_tier_without_room_is_as_if_it_were_not_there(share):
    profile = network()
    machine = three_tiers(footprint_bytes(profile) * share // 100, 0)
    made, without = plan(profile, machine), plan(profile, only(machine, 2))
    assert made.predicted_step_ns == without.predicted_step_ns
    assert made.migrations == tuple(
        replace(move, source=2 * move.source, target=2 * move.target) for move in without.migrations
    )
    assert made.blocks == tuple(
        replace(block, tier=2 * block.tier, name=block.name.replace("pool:slow", "pool:slow"))
        for block in without.blocks
    )
    assert made.held_bytes[1].max() == 0
    assert bound(profile, machine) == bound(profile, only(machine, 2))


def test_the_middle_tier_takes_what_is_used_most_a_byte_and_no_more_than_it_has_room_for():
    """Without fast memory: `hot` is read three times, `warm` twice, `cold` once; two of them fit in the middle."""
    size = 4 * MIB
    specs = [param("cold", size, [0]), param("warm", size, [1, 2]), param("hot", size, [0, 1, 3])]
    profile = make_profile(specs, 4)
    machine = three_tiers(0, 2 * size, middle_bw=50 * GB, slow_bw=10 * GB)
    made = plan(profile, machine)
    assert (where(made, "hot"), where(made, "warm"), where(made, "cold")) == ({1}, {1}, {2})
    extra = {1: size / 50 - size / 100, 2: size / 10 - size / 100}  # ns a use, over fast memory
    assert made.predicted_step_ns == pytest.approx(4_000_000 + 5 * extra[1] + extra[2], abs=4)
    assert made.held_bytes.max(axis=1).tolist() == [0, 2 * size, size]
    roomy = plan(profile, three_tiers(0, 3 * size, middle_bw=50 * GB, slow_bw=10 * GB))
    assert where(roomy, "cold") == {1}  # the control


def test_room_in_the_middle_is_counted_by_layers():
    """Two transients that are never alive together take turns; a third one that meets both finds no room."""
    size = 4 * MIB
    specs = [act("early", size, 0, 3, [1, 2]), act("late", size, 3, 6, [4, 5]), act("long", size, 1, 5, [4])]
    made = plan(make_profile(specs, 6), three_tiers(0, size))
    assert (where(made, "early"), where(made, "late"), where(made, "long")) == ({1}, {1}, {2})
    assert made.held_bytes[1].tolist() == [size] * 6


def test_short_lived_tensors_take_the_room_that_their_layer_leaves():
    """Beside `kept` there is room for one: in layer 1 two take turns at it, in layer 2 two are there at once."""
    size = 4 * MIB
    specs = [
        param("kept", size, [0, 1, 2, 3]),
        act("a", size, 1, 2, [1], dies_early=True),
        act("b", size, 1, 2, [1], dies_early=True),
        act("c", size, 2, 3, [2]),
        act("d", size, 2, 3, [2]),
    ]
    profile = make_profile(specs, 4)
    made = plan(profile, three_tiers(0, 2 * size))
    assert [where(made, name) for name in ("kept", "a", "b")] == [{1}, {1}, {1}]
    assert where(made, "c") | where(made, "d") == {1, 2}
    assert made.held_bytes[1].max() == 2 * size


def test_who_migrates_holds_room_at_home_while_it_is_on_its_way():
    profile = network()
    footprint = footprint_bytes(profile)
    made = plan(profile, three_tiers(footprint // 5, footprint // 5))
    homes = {move.source + move.target for move in made.migrations}
    assert homes == {1, 2}  # some move from and to each slower tier, none between them
    assert {0} == {min(move.source, move.target) for move in made.migrations}
    short = replace(made, capacity_bytes=(made.capacity_bytes[0], made.fast_peak_bytes // 50, made.capacity_bytes[2]))
    with pytest.raises(PlanError, match="capacity: tier middle holds"):
        check(short)


def test_more_than_one_middle_tier_is_filled_from_the_fast_end():
    size, base = 4 * MIB, three_tiers(0, 4 * MIB)
    tiers = (*base.tiers, TierSpec("last", "described", 1 << 40, 0, 4 * GB, 4 * GB))
    tiers = (*tiers[:2], replace(tiers[2], capacity_bytes=size), tiers[3])
    machine = replace(base, tiers=tiers, links=(*base.links, Link(3, 0, GB), Link(0, 3, GB)))
    specs = [param(f"p{n}", size, list(range(n))) for n in (1, 2, 3)]
    made = plan(make_profile(specs, 4), machine)
    assert [where(made, f"p{n}") for n in (3, 2, 1)] == [{1}, {2}, {3}]


def test_what_a_tier_would_slow_down_is_not_put_there():
    """The tier in the middle is faster to write and slower to read: what is read stays in the last one."""
    size, machine = 4 * MIB, three_tiers(0, 64 * MIB, middle_link=4 * GB)
    middle = replace(machine.tiers[1], read_bytes_per_s=4 * GB, write_bytes_per_s=80 * GB)
    machine = replace(machine, tiers=(machine.tiers[0], middle, machine.tiers[2]))
    specs = [param("read", size, [0, 1]), act("written", size, 0, 2)]
    made = plan(make_profile(specs, 3), machine)
    assert (where(made, "read"), where(made, "written")) == ({2}, {1})


def test_slower_tiers_that_are_too_small_together_are_refused():
    profile = network()
    with pytest.raises(PlanError, match="all tiers have"):
        plan(profile, three_tiers(8 * MIB, 8 * MIB, slow_bytes=8 * MIB))


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"all-fast", "interleave", "weighted-interleave"}))
def test_policies_use_the_middle_tier_before_the_last_one(policy):
    profile = network()
    footprint = footprint_bytes(profile)
    small, large = (plan(profile, three_tiers(footprint // 10, footprint * n // 10), policy) for n in (2, 6))
    assert small.held_bytes[1].max() >= 0.15 * footprint
    assert large.held_bytes[2].max() < small.held_bytes[2].max()
    assert large.predicted_step_ns < small.predicted_step_ns


def test_interleaving_deals_to_all_tiers():
    profile = network()
    footprint = footprint_bytes(profile)
    machine = three_tiers(footprint, footprint)
    held = plan(profile, machine, "interleave").held_bytes.max(axis=1) / footprint
    assert held == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.01)
    held = plan(profile, machine, "weighted-interleave").held_bytes.max(axis=1) / footprint
    assert held == pytest.approx(np.array([100, 30, 8]) / 138, abs=0.01)


def test_pages_fill_the_tiers_in_their_order():
    assert fill_tiers(np.array([3, 0, 1, 2]), (4096, 2 * 4096, 0)).tolist() == [1, 1, 2, 0]


def test_page_ranges_find_homes_of_their_own():
    profile = table_profile()
    made = plan(profile, three_tiers(0, footprint_bytes(profile) // 2, middle_bw=50 * GB))
    check(made, profile)
    assert made.uses.tobytes() == block_uses(made, profile).tobytes()
    assert made.held_bytes[1].max() > 0


def test_the_bound_knows_how_little_a_small_middle_tier_serves():
    """All in slow memory, once read a layer: a middle tier of one tensor's room can serve one of four."""
    size = 4 * MIB
    profile = make_profile([param(f"p{i}", size, [0, 1]) for i in range(4)], 2)
    machine = three_tiers(0, size, middle_bw=50 * GB, slow_bw=10 * GB)
    least, made = bound(profile, machine), plan(profile, machine)
    assert "middle tier" in least.loose
    assert simulate(made, profile, machine).step_ns == pytest.approx(least.step_ns, rel=1e-4)
