"""Plans where a tier cannot be used in place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.core.errors import Infeasible
from sentinel.core.laws import check
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner import plan
from sentinel.planner.assemble import footprint_bytes, has_room
from sentinel.planner.fetched_plans import fetched_plans
from sentinel.simulator import simulate
from tests.builders import MIB, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers

# One of three is used in every third layer; a transfer takes nearly two layers.
IN_TURN = make_profile([param(name, 4 * MIB, [3 * i]) for i, name in enumerate("abc")], 9)
TWO_LAYERS = 4 * MIB * 1_000_000_000 // 1_900_000  # bytes a second


def candidates(profile: Profile, machine: Machine) -> dict[str, Plan]:
    found = dict(fetched_plans(profile, machine, "test", footprint_bytes(profile)))
    for made in found.values():
        check(made, profile, machine)
    return found


def test_what_comes_one_layer_ahead_is_late_where_what_comes_in_pieces_is_not():
    machine = make_machine(8 * MIB, promote=TWO_LAYERS, demote=TWO_LAYERS, addressable=False)
    late, ahead = (simulate(each, IN_TURN, machine).step_ns for each in candidates(IN_TURN, machine).values())
    assert late > 10_500_000
    assert ahead == pytest.approx(9_000_000, rel=1e-3)
    made = plan(IN_TURN, machine)
    assert made.predicted_step_ns == ahead
    assert made.details["chosen"] == "optimized by layers"


def test_whole_pages_of_what_must_be_in_fast_memory_fit_or_the_mix_has_more_to_spare(monkeypatch):
    """An odd number of pages, cut in two: half a page more than there is room for."""
    pages = [param(name, 4 * MIB + 4096, [3 * i]) for i, name in enumerate("abc")]
    profile = make_profile(pages, 9)
    machine = make_machine(2 * (4 * MIB + 4096), promote=TWO_LAYERS, demote=TWO_LAYERS, addressable=False)
    assert all(has_room(made) for made in candidates(profile, machine).values())
    assert len(candidates(profile, machine)) == 2


def test_where_nothing_fits_it_is_told_what_would():
    machine = make_machine(3 * MIB, addressable=False)
    with pytest.raises(Infeasible) as caught:
        fetched_plans(IN_TURN, machine, "test", footprint_bytes(IN_TURN))
    assert caught.value.needed_bytes == 4 * MIB
    assert plan(IN_TURN, machine.with_fast_capacity(4 * MIB)).predicted_step_ns > 0


def below_memory(fast_bytes: int, middle_bytes: int) -> Machine:
    machine = three_tiers(fast_bytes, middle_bytes)
    return replace(machine, tiers=(*machine.tiers[:2], replace(machine.tiers[2], addressable=False)))


def test_three_tiers_are_in_one_plan_where_the_last_one_is_a_disk():
    """Of four tensors one has room in the middle; the others are fetched from below, in turn."""
    tensors = [param(name, 4 * MIB, [4 * i]) for i, name in enumerate("abcd")]
    profile = make_profile(tensors, 16)
    machine = below_memory(4 * MIB, 4 * MIB)
    made = plan(profile, machine)
    check(made, profile, machine)
    assert has_room(made)
    held = made.held_bytes.max(axis=1)
    assert held[1] == 4 * MIB
    assert held[2] >= 4 * MIB
    ways = {(move.source, move.target) for move in made.migrations}
    assert {(0, 2), (2, 0)} <= ways <= {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert "in between" in made.details["chosen"]


def test_short_lived_tensors_that_have_no_room_in_fast_memory_are_in_the_middle():
    tensors = [param("a", 2 * MIB, [0]), param("b", 2 * MIB, [4]), act("t", 3 * MIB, 2, 3)]
    profile, machine = make_profile(tensors, 8), below_memory(2 * MIB, 3 * MIB)
    made = plan(profile, machine)
    check(made, profile, machine)
    assert has_room(made)


def test_those_that_lose_least_or_most_in_the_middle_are_there():
    """`hot` is used in many layers, `cold` in one; there is room for one of them in the middle."""
    tensors = [param("cold", 4 * MIB, [0]), param("hot", 4 * MIB, [2, 4, 6, 8]), param("c", 4 * MIB, [12])]
    profile = make_profile(tensors, 16)
    found = candidates(profile, below_memory(4 * MIB, 4 * MIB))
    orders = {label.partition(", ")[2] for label in found}
    assert orders == {"least used in between", "most used in between"}  # all on the disk has no room


def test_a_tier_in_between_that_is_slower_than_the_disk_makes_no_plan_slower():
    profile = make_profile([param(name, 4 * MIB, [4 * i]) for i, name in enumerate("abcd")], 16)
    fast = below_memory(4 * MIB, 16 * MIB)
    slow = replace(fast.tiers[1], read_bytes_per_s=10 * MIB, write_bytes_per_s=10 * MIB)
    links = tuple(
        replace(link, bandwidth_bytes_per_s=10 * MIB) if 1 in (link.source, link.target) else link
        for link in fast.links
    )
    machine = replace(fast, tiers=(fast.tiers[0], replace(slow, capacity_bytes=4 * MIB), fast.tiers[2]), links=links)
    two = replace(
        machine,
        tiers=(machine.tiers[0], machine.tiers[2]),
        links=tuple(
            replace(link, source=min(link.source, 1), target=min(link.target, 1))
            for link in links
            if 1 not in (link.source, link.target)
        ),
    )
    assert plan(profile, machine).predicted_step_ns <= plan(profile, two).predicted_step_ns


def test_what_the_first_tier_that_is_not_used_in_place_has_no_room_for_goes_to_the_next():
    profile = make_profile([param(name, 4 * MIB, [3 * i]) for i, name in enumerate("abc")], 9)
    three = three_tiers(8 * MIB, 4 * MIB)
    barred = tuple(replace(tier, addressable=False) for tier in three.tiers[1:])
    machine = replace(three, tiers=(three.tiers[0], *barred))
    made = plan(profile, machine)
    check(made, profile, machine)
    assert has_room(made)
