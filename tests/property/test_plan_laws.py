"""The laws of a plan, for every policy on odd profiles and machines."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from sentinel.core.errors import Infeasible, PlanError
from sentinel.core.laws import check
from sentinel.core.units import HUGE_PAGE_BYTES
from sentinel.planner import POLICIES, bound, footprint_bytes, not_slower, plan
from sentinel.planner.packing import pack
from sentinel.simulator import simulate
from tests.builders import machines, profiles

pytestmark = pytest.mark.slow

MAY_CHOOSE = ("sentinel", "sentinel-2021", "next-use", "capuchin", "lru", "autotm", "first-touch")
FOR_GOOD = ("static", "weighted-interleave", "interleave", "first-touch")
few = settings(max_examples=20, deadline=None)


@few
@given(profile=profiles(), machine=machines())
def test_every_policy_keeps_the_laws_and_the_budget_and_does_not_beat_the_bound(profile, machine):
    least = bound(profile, machine)
    for policy in sorted(POLICIES):
        note(policy)
        try:
            made = plan(profile, machine, policy)
        except Infeasible:
            assert policy == "all-fast"
            continue
        check(made, profile, machine)
        run = simulate(made, profile, machine, steps=2)
        assert made.footprint_bytes == footprint_bytes(profile)
        assert run.layers["fast_bytes"].max() <= machine.fast.capacity_bytes
        assert run.step_ns == made.predicted_step_ns
        assert (run.layers["served_fast_bytes"] <= run.layers["touched_bytes"]).all()
        slots = {slot.tensor for slot in made.slots}
        assert slots == set(np.flatnonzero(profile.tensors["managed"]).tolist())
        assert made.predicted_step_ns >= least.step_ns - profile.n_layers  # each layer's time is rounded to a ns
        if policy == "sentinel":
            again = plan(profile, machine)
            for one, other in zip(_values(made), _values(again), strict=True):
                assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def _values(made):
    parts = ("slots", "blocks", "migrations", "segments")
    return [*(tuple(map(astuple, getattr(made, part))) for part in parts), made.uses, made.details]


@few
@given(profile=profiles(), machine=machines(), policy=st.sampled_from(MAY_CHOOSE))
def test_with_the_whole_footprint_nothing_moves_and_nothing_is_slow(profile, machine, policy):
    enough = machine.with_fast_capacity(footprint_bytes(profile))
    made = plan(profile, enough, policy)
    run = simulate(made, profile, enough)
    assert not made.migrations
    assert run.layers["slow_ns"].sum() == run.layers["stall_ns"].sum() == 0


@settings(max_examples=6, deadline=None)
@given(profile=profiles(), machine=machines())
def test_more_fast_memory_is_never_predicted_to_be_slower(profile, machine):
    whole = footprint_bytes(profile)
    budgets = [whole * share // 100 for share in (0, 10, 20, 40, 60, 80, 100)]
    each = [plan(profile, machine.with_fast_capacity(budget)) for budget in budgets]
    plans = list(accumulate(each, lambda best, made: not_slower(made, best)))
    for made, budget in zip(plans, budgets, strict=True):
        check(made, profile, machine.with_fast_capacity(budget))
        assert made.capacity_bytes[0] == budget
    times = [made.predicted_step_ns or 0 for made in plans]
    assert times == sorted(times, reverse=True)
    assert all(best <= (made.predicted_step_ns or 0) for best, made in zip(times, each, strict=True))


@given(
    arcs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 19), st.integers(1, 20)), max_size=24),
    aligned=st.booleans(),
)
def test_packed_arcs_that_share_a_time_share_no_byte(arcs, aligned):
    period = 20
    columns = np.array(arcs, np.int64).reshape(-1, 3)
    nbytes, start, width = columns[:, 0] * (HUGE_PAGE_BYTES // 4), columns[:, 1], columns[:, 2]
    offsets = pack(nbytes, start, start + width, period, aligned=aligned)
    assert not aligned or not (offsets[nbytes >= HUGE_PAGE_BYTES] % HUGE_PAGE_BYTES).any()
    alive = [{(s + i) % period for i in range(w)} for s, w in zip(start.tolist(), width.tolist(), strict=True)]
    for i in range(len(arcs)):
        for j in range(i):
            apart = offsets[i] + nbytes[i] <= offsets[j] or offsets[j] + nbytes[j] <= offsets[i]
            assert apart or not alive[i] & alive[j]


@few
@given(profile=profiles(), machine=machines())
def test_a_slow_tier_that_cannot_be_addressed_is_never_used_in_place(profile, machine):
    barred = replace(machine, tiers=(machine.tiers[0], replace(machine.tiers[1], addressable=False)))
    try:
        made = plan(profile, barred)
    except Infeasible as error:
        assert error.needed_bytes > error.available_bytes == machine.fast.capacity_bytes
        enough = barred.with_fast_capacity(error.needed_bytes)
        check(plan(profile, enough), profile, enough)
        return
    check(made, profile, barred)
    assert simulate(made, profile, barred).layers["slow_ns"].sum() == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=8, deadline=None)
@given(profile=profiles(), machine=machines())
def test_where_slow_memory_cannot_be_used_in_place_each_policy_keeps_to_it_or_is_refused_by_name(
    policy, profile, machine
):
    barred = replace(machine, tiers=(machine.tiers[0], replace(machine.tiers[1], addressable=False)))
    try:
        made = plan(profile, barred, policy)
    except Infeasible:
        assert policy in ("sentinel", "autotm", "all-fast")  # the others do not look whether it could be fetched
        return
    except PlanError as error:
        assert policy != "sentinel"  # which the sentence says to choose
        assert f"policy {policy} must use" in str(error)
        return
    check(made, profile, barred)


@settings(max_examples=25, deadline=None)
@given(profile=profiles(), machine=machines(), rival=st.sampled_from(FOR_GOOD))
def test_pages_dealt_out_for_good_are_not_faster_than_the_default_policy(profile, machine, rival):
    """Tensors larger than fast memory are common here: part of one may be fast."""
    ours, theirs = (plan(profile, machine, policy).predicted_step_ns for policy in ("sentinel", rival))
    assert ours <= theirs * 1.005 + profile.n_layers  # each layer's time is rounded to a ns
