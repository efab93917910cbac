"""Plans for several slower tiers, and for one that cannot be used in place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel import planner
from sentinel.core.errors import Infeasible
from sentinel.core.laws import check
from sentinel.planner import fetched_plans as fetched_plans_module
from sentinel.planner import needs_windows, portfolio
from sentinel.planner.assemble import footprint_bytes, has_room, one_tier
from sentinel.planner.fetched_plans import fetched_plans
from sentinel.planner.portfolio import best_of
from tests.builders import GB, MIB, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers

LARGE = 1 << 20


def taking_turns():
    return make_profile([param("a", LARGE, [0]), param("b", LARGE, [3])], 6)


def test_from_a_tier_not_used_in_place_everything_is_fetched_for_its_use():
    profile = taking_turns()
    machine = make_machine(LARGE, addressable=False)
    found = fetched_plans(profile, machine, "test", footprint_bytes(profile))
    assert [label for label, _ in found] == ["just in time", "optimized by layers"]
    for _, plan in found:
        check(plan, profile, machine)  # the law of residence: no use of what is away
        assert sorted((move.block, move.target) for move in plan.migrations) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert best_of(found, profile, machine, "test").policy == "test"


def test_of_plans_that_fetch_only_those_with_room_are_chosen_from(monkeypatch):
    profile, machine = taking_turns(), make_machine(LARGE, addressable=False)
    asked, tried = [], []

    def has_room_but_the_first(plan):
        asked.append(plan)
        return len(asked) > 1

    monkeypatch.setattr(fetched_plans_module, "has_room", has_room_but_the_first)
    monkeypatch.setattr(portfolio, "best_of", lambda plans, *_: tried.append([plan for _, plan in plans]))
    portfolio.Sentinel().plan(profile, machine)
    assert len(asked) > 1
    assert tried == [asked[1:]]


def test_where_slow_memory_that_is_not_used_in_place_is_too_small_it_is_told_how_much_would_do():
    """2 MiB in tiers of 1 and 1: what moves has no room on the other side."""
    profile, machine = taking_turns(), make_machine(LARGE, slow_bytes=LARGE, addressable=False)
    with pytest.raises(Infeasible) as caught:
        planner.plan(profile, machine)
    assert caught.value.needed_bytes > caught.value.available_bytes == 2 * LARGE


def test_what_must_be_in_fast_memory_at_one_time_is_told_where_it_does_not_fit():
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [0]), act("t", LARGE, 0, 1)], 4)
    with pytest.raises(Infeasible) as caught:
        fetched_plans(profile, make_machine(2 * LARGE, addressable=False), "test", footprint_bytes(profile))
    assert caught.value.needed_bytes == 3 * LARGE
    fetched_plans(profile, make_machine(3 * LARGE, addressable=False), "test", footprint_bytes(profile))


def test_a_tier_that_holds_more_than_its_capacity_has_no_room():
    profile = taking_turns()
    assert not has_room(one_tier(profile, make_machine(LARGE), 0, "test"))
    assert has_room(one_tier(profile, make_machine(2 * LARGE), 0, "test"))


def test_every_slower_tier_counts():
    machine = three_tiers()
    assert not needs_windows(machine)
    file_like = replace(machine.tiers[2], addressable=False)
    assert needs_windows(replace(machine, tiers=(*machine.tiers[:2], file_like)))


@pytest.mark.parametrize("forgiving", [None, True, False])
def test_a_slow_tier_that_is_nearly_full_rules_out_what_has_no_room_in_it(forgiving):
    """20 MiB on tiers of 12 and 10: what moves holds room on both sides, which there is not."""
    profile = make_profile([param("a", 10 * MIB, [0, 1, 2]), param("b", 10 * MIB, [10, 11, 12])], 20)
    machine = make_machine(12 * MIB, slow_bytes=10 * MIB, promote=10 * GB, demote=10 * GB)
    made = planner.plan(profile, machine, forgiving=forgiving)
    check(made, profile, machine)
    assert has_room(made)
