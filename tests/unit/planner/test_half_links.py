"""A plan is held to half the links alone: there nothing else is dearer, so what moves nothing loses nothing."""

from __future__ import annotations

import pytest

from sentinel.planner import plan, portfolio
from sentinel.planner.portfolio import STAYS, WORSE_BY, best_of
from sentinel.simulator import simulate
from tests.builders import GB, MIB, make_machine, make_profile, param, persistent_plan

SIZE = 8 * MIB


def test_a_plan_that_half_the_links_alone_spoil_gives_way():
    """Two tensors of 8 MiB take turns in room for one: 0.84 ms over the link, in layers of 0.9 ms; half the link
    doubles that. Where slow accesses are dearer too, as on a worse machine, moving still pays."""
    profile = make_profile([param("a", SIZE, [0, 1, 2]), param("b", SIZE, [5, 6, 7])], 10, layer_ns=900_000)
    machine = make_machine(SIZE, promote=10 * GB, demote=10 * GB)
    turns = [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 8, 9), (0, 1, 0, 9, 10)]
    moves = persistent_plan(profile, [0, 1], turns, fast_bytes=SIZE)
    stays = persistent_plan(profile, [0, 1], fast_bytes=SIZE)
    machines = (machine, machine.worse(), machine.with_links_at(0.5))
    steps = [[simulate(each, profile, on).step_ns for on in machines] for each in (moves, stays)]
    assert steps[0][0] < steps[1][0]
    assert steps[0][1] <= WORSE_BY * steps[1][1]
    assert steps[0][2] > WORSE_BY * steps[1][2]
    assert steps[1][2] == steps[1][0]  # nothing of it crosses a link
    candidates = [("moves", moves), (STAYS, stays)]
    made = best_of(candidates, profile, machine, "x", forgiving=True)
    assert made.details["chosen"] == STAYS
    assert made.details["half_links"] == {"step_ns": steps[1][2], "most_ns": int(WORSE_BY * steps[1][2])}
    assert made.details["spoilt"] == {"moves": steps[0][0]}
    assert best_of(candidates, profile, machine, "x").details["chosen"] == "moves"


@pytest.mark.parametrize("link", [2, 4, 6, 10])
def test_no_plan_is_more_than_3_percent_behind_what_moves_nothing_with_half_the_links(link):
    specs = [param(f"w{k}", 4 * MIB, [k, 23 - k]) for k in range(12)]
    profile = make_profile(specs, 24, layer_ns=1_000_000)
    machine = make_machine(20 * MIB, promote=link * GB, demote=link * GB)
    made, stays = plan(profile, machine), plan(profile, machine, "best-static")
    half = machine.with_links_at(0.5)
    steps = [[simulate(each, profile, on).step_ns for on in (machine, half)] for each in (made, stays)]
    assert steps[0][0] <= steps[1][0]
    assert steps[0][1] <= WORSE_BY * steps[1][1]


def test_plans_for_half_the_links_are_tried_before_moving_is_given_up():
    """As fast as described, and within the rule: plans made for fewer links are among the candidates."""
    specs = [param(f"w{k}", 4 * MIB, [k, 23 - k]) for k in range(12)]
    profile = make_profile(specs, 24, layer_ns=1_000_000)
    for link in (3, 4, 5, 6, 8):
        machine = make_machine(20 * MIB, promote=link * GB, demote=link * GB)
        made = plan(profile, machine)
        if made.details["spoilt"]:
            assert "for links at" in made.details["chosen"]
            assert made.migrations
            return
    pytest.fail("half the links spoil none of these")


def test_more_caution_is_tried_while_the_fastest_of_those_tried_breaks_the_rule(monkeypatch):
    """Steps as described, and whether the rule is kept: a slow one that keeps it does not end the search."""
    profile, machine = make_profile([param("a", SIZE, [0])], 2), make_machine(SIZE)
    steps = {"first": (80, False), "hasty": (85, False), "slow": (98, True), "good": (90, True), "late": (89, True)}
    steps[STAYS] = (100, True)
    monkeypatch.setattr(portfolio._Tried, "step_ns", property(lambda tried: steps[tried.label][0]))
    monkeypatch.setattr(portfolio._Tried, "keeps", lambda tried, most_ns: steps[tried.label][1])
    plans = {label: persistent_plan(profile, [0], fast_bytes=SIZE) for label in steps}
    batches = [["hasty", "slow"], [], ["good"], ["late"]]

    def others():
        return iter([[(label, plans[label]) for label in batch] for batch in batches])

    candidates = [("first", plans["first"]), (STAYS, plans[STAYS])]
    made = best_of(candidates, profile, machine, "x", forgiving=True, others=others)
    assert made.details["chosen"] == "good"
    assert made.details["spoilt"] == {"first": 80, "hasty": 85}
    assert "late" not in made.details["alternatives"]  # nor tried
