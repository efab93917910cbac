"""Cutting tensors into parts conserves bytes and accesses; plans of parts keep the laws and the bound holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel import planner
from sentinel.core.laws import check
from sentinel.core.machine import Machine
from sentinel.core.parts import split
from sentinel.core.profile import Profile
from sentinel.core.uses import block_uses
from sentinel.simulator import simulate
from tests.builders import machines, profiles, ranged_profiles


@given(ranged_profiles())
@settings(max_examples=200, deadline=None)
def test_bytes_and_accesses_are_conserved(profile: Profile) -> None:
    parts = split(profile)
    whole = np.zeros(len(profile.names), np.int64)
    np.add.at(whole, parts.whole, parts.profile.tensors["nbytes"])
    assert whole.tolist() == profile.tensors["nbytes"].tolist()
    cut = np.bincount(parts.whole, minlength=len(whole)) > 1
    assert not cut[~profile.tensors["managed"] | ~profile.tensors["persistent"]].any()
    assert (parts.first_page[~cut[parts.whole]] == 0).all()
    length = profile.n_layers
    for column in ("touched_bytes", "read_bytes", "written_bytes"):
        sums = np.zeros((len(whole), length), np.int64)
        np.add.at(
            sums,
            (parts.whole[parts.profile.accesses["tensor"]], parts.profile.accesses["layer"]),
            parts.profile.accesses[column],
        )
        want = np.zeros_like(sums)
        want[profile.accesses["tensor"], profile.accesses["layer"]] = profile.accesses[column]
        assert np.array_equal(sums, want)
    untouched = ~cut[profile.accesses["tensor"]]
    mine = ~cut[parts.whole[parts.profile.accesses["tensor"]]]
    a, b = profile.accesses[untouched].copy(), parts.profile.accesses[mine].copy()
    b["tensor"] = parts.whole[b["tensor"]]
    assert np.array_equal(a, b), "what has no ranges is as it was"


@given(ranged_profiles(), machines(), st.sampled_from(["sentinel", "sentinel-2021", "static", "lru", "interleave"]))
@settings(max_examples=60, deadline=None)
def test_plans_of_parts_keep_the_laws(profile: Profile, machine: Machine, policy: str) -> None:
    plan = planner.plan(profile, machine, policy)
    check(plan, profile, machine)
    names = [slot.name for slot in plan.slots]
    assert sorted(names) == sorted(n for n, m in zip(profile.names, profile.tensors["managed"], strict=True) if m)
    assert all(slot.nbytes == profile.tensors["nbytes"][slot.tensor] for slot in plan.slots)
    run = simulate(plan, profile, machine)
    assert run.step_ns == plan.predicted_step_ns
    touched = int(profile.accesses["touched_bytes"].sum())
    assert abs(int(run.layers["touched_bytes"].sum()) - touched) <= profile.n_layers
    managed = profile.tensors["managed"][profile.accesses["tensor"]]
    used = int(profile.accesses["touched_bytes"][managed].sum())
    uses = block_uses(plan, profile)
    assert abs(int(uses["touched_bytes"].sum()) - used) <= len(uses) + len(profile.accesses)
    rounding = profile.n_layers  # simulated layers are whole ns
    assert planner.bound(profile, machine).step_ns <= (plan.predicted_step_ns or 0) + rounding


@given(ranged_profiles(), machines())
@settings(max_examples=40, deadline=None)
def test_folding_undoes_unfolding(profile: Profile, machine: Machine) -> None:
    plan = planner.plan(profile, machine, "first-touch", whole_tensors=True)
    parts = split(profile)
    again = parts.fold(parts.unfold(plan))
    assert sorted(again.slots, key=lambda s: s.tensor) == sorted(plan.slots, key=lambda s: s.tensor)
    assert [b.tensors for b in again.blocks] == [b.tensors for b in plan.blocks]


@given(profiles(), machines())
@settings(max_examples=40, deadline=None)
def test_without_ranges_a_plan_is_what_the_policy_says(profile: Profile, machine: Machine) -> None:
    one = planner.plan(profile, machine, "first-touch")
    other = planner.plan(profile, machine, "first-touch", whole_tensors=True)
    assert (one.blocks, one.slots, one.migrations) == (other.blocks, other.slots, other.migrations)
    assert "page_ranges" not in one.details
