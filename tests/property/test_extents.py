"""Cutting tensors conserves bytes and accesses; plans of page ranges keep the laws and the bound holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel import planner
from sentinel.core.extents import cut_extents, extent_shares, extents_as_tensors, merge_extents
from sentinel.core.laws import check
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.uses import block_uses
from sentinel.simulator import simulate
from tests.builders import machines, profiles, ranged_profiles, ranges_of

COUNTED = ("touched_bytes", "read_bytes", "written_bytes")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_bytes_and_accesses_are_conserved(data: st.DataObject) -> None:
    whole = data.draw(profiles())
    profile = cut_extents(whole, data.draw(ranges_of(whole)))
    tensor, n = profile.extents["tensor"], len(whole.names)
    nbytes = np.bincount(tensor, profile.extents["nbytes"], n).astype(np.int64)
    assert nbytes.tolist() == whole.tensors["nbytes"].tolist()
    cut = np.bincount(tensor, minlength=n) > 1
    assert not cut[~whole.tensors["managed"] | ~whole.tensors["persistent"]].any()
    again = merge_extents(profile)
    for column in COUNTED:
        sums, wanted = (np.zeros((n, whole.n_layers), np.int64) for _ in range(2))
        sums[again.accesses["extent"], again.accesses["layer"]] = again.accesses[column]
        wanted[whole.accesses["extent"], whole.accesses["layer"]] = whole.accesses[column]
        assert np.array_equal(sums, wanted)
    owner: NDArray[np.int64] = tensor[profile.accesses["extent"]]
    mine = profile.accesses[~cut[owner]].copy()
    mine["extent"] = tensor[mine["extent"]]
    owner = whole.accesses["extent"]
    assert np.array_equal(mine, whole.accesses[~cut[owner]]), "what has no ranges is as it was"


@given(ranged_profiles())
@settings(max_examples=30, deadline=None)
def test_extents_as_tensors_have_the_bytes_and_accesses_of_the_profile(profile: Profile) -> None:
    apart = extents_as_tensors(profile)
    assert not apart.is_cut
    assert apart.tensors["nbytes"].tolist() == profile.extents["nbytes"].tolist()
    assert np.array_equal(apart.accesses, profile.accesses)
    assert planner.footprint_bytes(apart) == planner.footprint_bytes(profile)


@given(ranged_profiles(), machines(), st.sampled_from(["sentinel", "sentinel-2021", "static", "lru", "interleave"]))
@settings(max_examples=15, deadline=None)
def test_plans_of_page_ranges_keep_the_laws(profile: Profile, machine: Machine, policy: str) -> None:
    plan = planner.plan(profile, machine, policy)
    check(plan, profile, machine)
    names = [slot.name for slot in plan.slots]
    assert sorted(names) == sorted(n for n, m in zip(profile.names, profile.tensors["managed"], strict=True) if m)
    assert all(slot.nbytes == profile.tensors["nbytes"][slot.tensor] for slot in plan.slots)
    run = simulate(plan, profile, machine)
    assert run.step_ns == plan.predicted_step_ns
    touched = int(profile.accesses["touched_bytes"].sum())
    assert abs(int(run.layers["touched_bytes"].sum()) - touched) <= profile.n_layers
    owner: NDArray[np.int64] = profile.extents["tensor"][profile.accesses["extent"]]
    managed = profile.tensors["managed"][owner]
    used = int(profile.accesses["touched_bytes"][managed].sum())
    uses = block_uses(plan, profile)
    assert abs(int(uses["touched_bytes"].sum()) - used) <= len(uses) + len(profile.accesses)
    rounding = profile.n_layers  # simulated layers are whole ns
    assert planner.bound(profile, machine).step_ns <= (plan.predicted_step_ns or 0) + rounding


@given(ranged_profiles(), machines(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_blocks_hold_each_lasting_extent_once(profile: Profile, machine: Machine, whole_tensors: bool) -> None:
    """A plan of whole tensors or of ranges, seen through the extents of the profile."""
    plan = planner.plan(profile, machine, "first-touch", whole_tensors=whole_tensors)
    block, extent, share = extent_shares(plan, profile)
    assert (np.diff(block) >= 0).all()
    held = np.bincount(extent, share, len(profile.extents))
    rows = profile.tensors[profile.extents["tensor"]]
    assert np.allclose(held[rows["managed"] & rows["persistent"]], 1.0)
    assert not held[~rows["managed"]].any()


@given(profiles(), machines())
@settings(max_examples=20, deadline=None)
def test_without_ranges_a_plan_is_what_the_policy_says(profile: Profile, machine: Machine) -> None:
    one = planner.plan(profile, machine, "first-touch")
    other = planner.plan(profile, machine, "first-touch", whole_tensors=True)
    assert (one.blocks, one.slots, one.migrations) == (other.blocks, other.slots, other.migrations)
    assert "page_ranges" not in one.details
