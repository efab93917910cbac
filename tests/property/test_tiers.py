"""The laws, the bound and the promises of plans on machines with three tiers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from sentinel.core.errors import Infeasible, PlanError
from sentinel.core.laws import check
from sentinel.planner import POLICIES, bound, footprint_bytes, plan
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import decide, episodes_of
from sentinel.planner.pool import reserve
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate
from tests.builders import profiles
from tests.property.test_bound import _timelines as timelines
from tests.three_tiers import only, three_tier_machines

pytestmark = pytest.mark.slow


@settings(max_examples=8, deadline=None)
@given(profile=profiles(), machine=three_tier_machines())
def test_every_policy_keeps_every_capacity_and_no_run_beats_the_bound(profile, machine):
    least = bound(profile, machine)
    for policy in sorted(POLICIES):
        note(policy)
        try:
            made = plan(profile, machine, policy)
        except Infeasible:
            assert policy == "all-fast"
            continue
        check(made, profile, machine)
        assert (made.held_bytes <= np.array([tier.capacity_bytes for tier in machine.tiers])[:, None]).all()
        assert made.footprint_bytes == footprint_bytes(profile)
        run = simulate(made, profile, machine, steps=2)
        assert run.step_ns == made.predicted_step_ns
        assert run.step_ns >= least.step_ns - profile.n_layers


@settings(max_examples=25, deadline=None)
@given(profile=profiles(), machine=three_tier_machines())
def test_with_a_last_tier_that_cannot_be_used_in_place_plans_keep_the_laws_or_are_refused(profile, machine):
    below = replace(machine.tiers[2], addressable=False)
    machine = replace(machine, tiers=(*machine.tiers[:2], below))
    try:
        made = plan(profile, machine)
    except Infeasible as error:
        assert error.needed_bytes > error.available_bytes
        return
    check(made, profile, machine)
    assert (made.held_bytes <= np.array([tier.capacity_bytes for tier in machine.tiers])[:, None]).all()
    run = simulate(made, profile, machine, steps=2)
    assert run.step_ns == made.predicted_step_ns
    assert run.step_ns >= bound(profile, machine).step_ns - profile.n_layers


@settings(max_examples=38, deadline=None)
@given(profile=profiles(), machine=three_tier_machines(), seed=st.integers(0, 1 << 30))
def test_no_plan_at_random_beats_the_bound_of_what_it_holds_in_each_tier(profile, machine, seed):
    rng = np.random.default_rng(seed)
    work = make_workload(profile, machine.with_fast_capacity(1 << 40), footprint_bytes(profile))
    episodes = episodes_of(work, timelines(work, rng))
    granted = np.isin(episodes.unit, np.flatnonzero(rng.random(len(work.units)) < rng.random()))
    short = reserve(work, 1 << 40, rng.random(len(work.units.short)) < rng.random())
    decision = decide(work, episodes, granted, short)
    draft = assemble(decision, work.units, profile, machine, policy="random", footprint_bytes=0)
    held = draft.held_bytes.max(axis=1).tolist()
    tiers = tuple(replace(tier, capacity_bytes=most) for tier, most in zip(machine.tiers[:2], held, strict=False))
    exact = replace(machine, tiers=(*tiers, machine.tiers[2]))
    made = replace(draft, capacity_bytes=tuple(tier.capacity_bytes for tier in exact.tiers))
    check(made, profile, exact)
    assert simulate(made, profile, exact).step_ns >= bound(profile, exact).step_ns - profile.n_layers


@settings(max_examples=10, deadline=None)
@given(profile=profiles(), machine=three_tier_machines())
def test_a_middle_tier_never_makes_a_plan_slower_than_one_that_ignores_it(profile, machine):
    with_it, again, without = plan(profile, machine), plan(profile, machine), plan(profile, only(machine, 2))
    assert with_it.predicted_step_ns <= without.predicted_step_ns
    for part in ("segments", "slots", "blocks", "migrations", "details"):
        assert getattr(with_it, part) == getattr(again, part), "the same inputs give the same plan"


@settings(max_examples=6, deadline=None)
@given(profile=profiles(), machine=three_tier_machines(), share=st.floats(0.0, 1.5))
def test_a_small_last_tier_is_kept_or_refused(profile, machine, share):
    """Policies fill the tiers from the fast end; what does not fit then is refused in words, by the same law."""
    small = replace(machine.tiers[2], capacity_bytes=int(footprint_bytes(profile) * share))
    tight = replace(machine, tiers=(*machine.tiers[:2], small))
    try:
        made = plan(profile, tight)
    except PlanError as error:
        assert "that all tiers have" in str(error) or "capacity" in str(error)
        return
    check(made, profile, tight)


@settings(max_examples=10, deadline=None)
@given(profile=profiles(), machine=three_tier_machines(), middle=st.booleans())
def test_a_tier_that_cannot_be_addressed_is_never_used_in_place(profile, machine, middle):
    barred = 1 if middle else 2
    tiers = tuple(replace(tier, addressable=i != barred) for i, tier in enumerate(machine.tiers))
    machine = replace(machine, tiers=tiers)
    try:
        made = plan(profile, machine)
    except (Infeasible, PlanError):
        assert footprint_bytes(profile) > machine.fast.capacity_bytes
        return
    check(made, profile, machine)
