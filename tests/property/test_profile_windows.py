"""Where slower memory cannot be used in place: no plan's step is shorter than what its windows must move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.planner import bound, needs_windows, plan, profile_window_bound_ns
from sentinel.simulator import simulate
from tests.builders import MIB, act, machines, make_machine, make_profile, param, profiles, ranged_profiles

few = settings(max_examples=30, deadline=None)


def not_in_place(machine: Machine) -> Machine:
    fast, slow = machine.tiers
    return replace(machine, tiers=(fast, replace(slow, addressable=False)))


@few
@given(profile=st.one_of(profiles(), ranged_profiles()), machine=machines())
def test_no_plan_is_faster(profile: Profile, machine: Machine) -> None:
    machine = not_in_place(machine)
    try:
        made = plan(profile, machine)
    except Infeasible:
        return
    found, step_ns = profile_window_bound_ns(profile, machine), simulate(made, profile, machine).step_ns or 0
    assert found <= bound(profile, machine).step_ns <= step_ns + profile.n_layers


TURNS = make_profile([param("a", 8 * MIB, [0]), param("b", 8 * MIB, [1])], 2)
READ_NS = 8 * MIB  # at 1 byte a ns


@pytest.mark.parametrize("full_duplex", [True, False])
def test_two_that_take_turns_are_both_read_in_each_step(full_duplex: bool) -> None:
    small = make_machine(8 * MIB, addressable=False, full_duplex=full_duplex)
    assert profile_window_bound_ns(TURNS, small) == pytest.approx(2 * READ_NS, rel=1e-6)
    assert bound(TURNS, small).step_ns >= profile_window_bound_ns(TURNS, small)
    large = make_machine(16 * MIB, addressable=False, full_duplex=full_duplex)
    assert profile_window_bound_ns(TURNS, large) == 2_000_000
    assert not needs_windows(make_machine(8 * MIB))
    assert profile_window_bound_ns(TURNS, make_machine(8 * MIB)) == 0


def test_what_is_kept_for_later_is_written_and_read_again() -> None:
    """4 activations of 8 MiB, made in layers 0 to 3 and read in layers 7 to 4, in room for two."""
    acts = [act(f"x{k}", 8 * MIB, k, 8 - k, [7 - k]) for k in range(4)]
    profile = make_profile(acts, 8, layer_ns=1000)
    shared, apart = (make_machine(16 * MIB, addressable=False, full_duplex=full) for full in (False, True))
    assert profile_window_bound_ns(profile, apart) == pytest.approx(2 * READ_NS, rel=1e-2)
    assert profile_window_bound_ns(profile, shared) == pytest.approx(4 * READ_NS, rel=1e-2)
    assert plan(profile, shared).predicted_step_ns >= profile_window_bound_ns(profile, shared)


def test_memory_behind_the_fast_tier_that_is_used_in_place_counts_as_memory() -> None:
    two = make_machine(4 * MIB, slow_bytes=4 * MIB)
    disk = replace(two.tiers[1], name="disk", addressable=False, capacity_bytes=1 << 40)
    links = tuple(replace(link, **{end: 2}) for link, end in zip(two.links, ("source", "target"), strict=True))
    machine = replace(two, tiers=(*two.tiers, disk), links=(*two.links, *links))
    assert profile_window_bound_ns(TURNS, machine) == pytest.approx(2 * READ_NS, rel=1e-6)
