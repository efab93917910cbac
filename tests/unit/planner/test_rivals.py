"""Policies of other systems on steps whose plan follows from their rule."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.errors import PlanError, UsageError
from sentinel.planner import plan as make_plan
from sentinel.planner.master import Master
from sentinel.planner.moving_rivals import MOST_UNITS, AutoTm, Capuchin, Lru, NextUse
from sentinel.planner.pool import reserve
from sentinel.planner.static_placements import AllSlow, FirstTouch, Interleave, Static, WeightedInterleave, dealt
from sentinel.planner.workload import make_workload
from tests.builders import GB, act, make_machine, make_profile, param

LARGE = 1 << 20
PAGE = 4096


def fast_bytes(plan):
    return sum(block.nbytes for block in plan.blocks if block.tier == 0)


def taking_turns(fast=LARGE):
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [4])], 8, layer_ns=100_000_000)
    work = make_workload(profile, make_machine(fast), 2 * LARGE)
    return work, reserve(work, work.budget_bytes)


def test_interleaving_deals_every_other_page_and_the_weighted_one_by_bandwidth():
    profile = make_profile([param("p", 100 * PAGE, [0])], 2)
    machine = make_machine(100 * PAGE, fast_bw=30 * GB, slow_bw=10 * GB)
    assert fast_bytes(Interleave().plan(profile, machine)) == 50 * PAGE
    assert fast_bytes(WeightedInterleave().plan(profile, machine)) == 75 * PAGE
    assert fast_bytes(WeightedInterleave().plan(profile, make_machine(20 * PAGE))) == 20 * PAGE


def test_dealt_pages_are_spread_evenly_within_the_budget():
    tier = dealt(100 * PAGE, 0.25, 1 << 40)
    assert (tier == 0).sum() == 25
    assert (np.diff(np.flatnonzero(tier == 0)) == 4).all()
    assert (dealt(100 * PAGE, 0.25, 10 * PAGE) == 0).sum() == 10


def test_optimizer_state_comes_first_for_good():
    profile = make_profile([param("p", LARGE, [0]), param("m", LARGE, [1], role="optimizer")], 2)
    plan = Static().plan(profile, make_machine(LARGE))
    assert {block.name: block.tier for block in plan.blocks} == {"p": 1, "m": 0}


def test_first_touch_fills_fast_memory_in_the_order_of_birth():
    profile = make_profile([act("late", LARGE, 1, 3, [2]), act("early", LARGE, 0, 3, [2]), param("p", LARGE, [2])], 4)
    plan = FirstTouch().plan(profile, make_machine(2 * LARGE))
    fast = {name for block in plan.blocks if block.tier == 0 for name in (profile.names[t] for t in block.tensors)}
    assert fast == {"p", "early"}
    assert fast_bytes(AllSlow().plan(profile, make_machine(2 * LARGE))) == 0


def test_next_use_fetches_for_every_use_and_keeps_what_is_used_again_soonest():
    work, short = taking_turns()
    decision = NextUse().decide(work, short)
    assert sorted((int(m["part"]), int(m["target"]), int(m["start"])) for m in decision.moves) == [
        (0, 0, 7),
        (0, 1, 1),
        (1, 0, 3),
        (1, 1, 5),
    ]
    roomy, short = taking_turns(2 * LARGE)
    assert len(NextUse().decide(roomy, short).moves) == 0


def test_capuchin_opens_the_gap_with_most_time_to_spare():
    """`b` is away for longer: of two, one has to go."""
    profile = make_profile([param("a", LARGE, [0, 2, 4, 6]), param("b", LARGE, [0])], 8, layer_ns=100_000_000)
    work = make_workload(profile, make_machine(LARGE), 2 * LARGE)
    decision = Capuchin().decide(work, reserve(work, work.budget_bytes))
    assert 0 not in decision.moves["part"]
    assert decision.parts["tier"].tolist() == [0, 1]


def test_an_active_list_brings_in_what_was_missed_behind_its_use():
    """The room is used up between two uses of either, so both miss each time, and are promoted behind the use."""
    work, short = taking_turns()
    decision = Lru().decide(work, short)
    promotions = decision.moves[decision.moves["target"] == 0]
    assert promotions["start"].tolist() == [1, 5]


@pytest.mark.parametrize("search_s", [None, 600.0])
def test_the_integer_program_splits_no_unit_says_its_gap_and_refuses_many(search_s):
    profile = make_profile([param(name, LARGE, [0, 1]) for name in "abc"], 4)
    plan = AutoTm(search_s).plan(profile, make_machine(LARGE * 5 // 2, promote=1, demote=1))
    assert sorted((block.nbytes, block.tier) for block in plan.blocks) == [(LARGE, 0), (LARGE, 0), (LARGE, 1)]
    assert 0 <= plan.details["gap"] <= 2e-3
    many = make_profile([param(f"p{i}", 1 << 16, [i % 2]) for i in range(MOST_UNITS + 1)], 2)
    with pytest.raises(PlanError, match=f"at most {MOST_UNITS} blocks"):
        AutoTm().plan(many, make_machine(LARGE))


def test_seconds_give_a_search_more_timelines_and_what_they_bring_not_is_that_of_nodes(monkeypatch):
    """A search that time ends at once finds nothing: what 50 nodes found is taken."""
    asked = []
    by_master = Master.solve_whole

    def noted(master, nodes, seconds=0.0):
        found = by_master(master, nodes, seconds)
        asked.append((nodes, seconds, master.highs.getOptionValue("time_limit")[1]))
        return found

    monkeypatch.setattr(Master, "solve_whole", noted)
    profile = make_profile([param(name, LARGE, [k, 7 - k]) for k, name in enumerate("abcd")], 8, layer_ns=1_000_000)
    machine = make_machine(LARGE * 5 // 2)
    usual = make_plan(profile, machine, "autotm")
    assert asked == [(50, 0.0, np.inf)]
    none = make_plan(profile, machine, "autotm", search_s=1e-9)
    assert asked[1:] == [(1 << 30, 1e-9, 1e-9), (50, 0.0, np.inf)]
    assert (none.blocks, none.migrations, none.details["gap"]) == (usual.blocks, usual.migrations, usual.details["gap"])
    given = make_plan(profile, machine, "autotm", search_s=600.0)
    assert given.details["program_ns"] <= usual.details["program_ns"]
    assert 0 <= given.details["gap"] <= 1e-4


def test_only_autotm_has_a_search_and_it_takes_time():
    profile, machine = make_profile([param("a", LARGE, [0])], 2), make_machine(LARGE // 2)
    with pytest.raises(UsageError, match="policy sentinel has no search; use policy autotm"):
        make_plan(profile, machine, search_s=1.0)
    with pytest.raises(UsageError, match="search_s is 0; give seconds above 0"):
        make_plan(profile, machine, "autotm", search_s=0)
