"""Which candidate is taken, and how hard is searched."""

from __future__ import annotations

import pytest

from benchmarks.traces.synthetic import synthetic
from sentinel.planner import column_generation, plan, portfolio
from sentinel.planner.assemble import footprint_bytes, one_tier
from sentinel.planner.column_generation import ColumnGeneration, Effort, efforts_for, optimized
from sentinel.planner.portfolio import STAYS, WORSE_BY, best_of
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate
from tests.builders import GB, MIB, make_machine, make_profile, param, persistent_plan
from tests.three_tiers import three_tiers

LINKS = {"promote": 10 * GB, "demote": 10 * GB}


def test_the_candidate_that_is_simulated_fastest_is_taken_the_first_of_equals():
    profile, machine = make_profile([param("p", 1 << 20, [0, 1])], 2), make_machine()
    slow, fast = (one_tier(profile, machine, tier, "x") for tier in (1, 0))
    made = best_of([("slow", slow), ("fast", fast), ("again", fast)], profile, machine, "test")
    assert (made.policy, made.details["chosen"], made.blocks) == ("test", "fast", fast.blocks)
    assert made.details["alternatives"]["fast"] == made.predicted_step_ns < made.details["alternatives"]["slow"]


def test_a_plan_that_a_worse_machine_spoils_gives_way_to_one_that_moves_nothing():
    """Two tensors of 8 MiB take turns in room for one: 0.8 ms over the link, within layers of 1 ms; over half of it
    twice that, and both wait."""
    size = 8 * MIB
    profile, machine = make_profile([param("a", size, [0]), param("b", size, [3])], 6), make_machine(size, **LINKS)
    stays = persistent_plan(profile, [0, 1], fast_bytes=size)
    turns = [(0, 0, 1, 1, 2), (1, 1, 0, 2, 3), (1, 0, 1, 4, 5), (0, 1, 0, 5, 6)]
    moves = persistent_plan(profile, [0, 1], turns, fast_bytes=size)
    candidates = [("moves", moves), (STAYS, stays)]
    described, worse = ([simulate(p, profile, m).step_ns for _, p in candidates] for m in (machine, machine.worse()))
    assert described[0] < described[1]
    assert worse[0] > WORSE_BY * worse[1]
    for forgiving, chosen in ((False, "moves"), (True, STAYS)):
        made = best_of(candidates, profile, machine, "x", forgiving=forgiving)
        assert made.details["chosen"] == chosen
    assert best_of([("moves", moves)], profile, machine, "x", forgiving=True).details["chosen"] == "moves"


def test_a_plan_that_moves_gives_way_where_its_gain_is_within_what_is_unsure_of_the_price_of_moves():
    """As above, but with links that nothing spoils. A migration is priced so that moving just pays, or that it pays
    even if a migration takes 1.25 times as much."""
    size = 8 * MIB
    profile, free = make_profile([param("a", size, [0]), param("b", size, [3])], 6), make_machine(size, **LINKS)
    stays = persistent_plan(profile, [0, 1], fast_bytes=size)
    turns = [(0, 0, 1, 1, 2), (1, 1, 0, 2, 3), (1, 0, 1, 4, 5), (0, 1, 0, 5, 6)]
    moves = persistent_plan(profile, [0, 1], turns, fast_bytes=size)
    candidates = [("moves", moves), (STAYS, stays)]
    moving, staying = (simulate(p, profile, free).step_ns for _, p in candidates)
    gain = staying - moving
    for share, chosen in ((0.9, STAYS), (0.79, "moves"), (1.1, STAYS)):
        machine = make_machine(size, **LINKS, lost_ns_per_move=share * gain / 4)
        made = best_of(candidates, profile, machine, "x")
        assert made.details["chosen"] == chosen
        if share == 0.9:
            told = made.details["unsure"]
            assert told["step_ns"] < made.predicted_step_ns == staying <= told["dearer_ns"]
        else:
            assert "unsure" not in made.details


def test_of_plans_that_move_the_fastest_one_is_taken_whose_gain_is_sure(monkeypatch):
    """Steps as described, and with moves 1.25 times as dear."""
    size = 8 * MIB
    profile, machine = make_profile([param("a", size, [0])], 2), make_machine(size, **LINKS)
    steps = {"dear": (100, 111), "sure": (101, 103), "surer": (102, 102), STAYS: (110, 110)}
    for index, what in enumerate(("step_ns", "dearer_ns")):
        monkeypatch.setattr(portfolio._Tried, what, property(lambda tried, index=index: steps[tried.label][index]))
    candidates = [(label, persistent_plan(profile, [0], fast_bytes=size)) for label in steps]
    assert best_of(candidates, profile, machine, "x").details["chosen"] == "sure"
    assert best_of([candidates[0], candidates[3]], profile, machine, "x").details["chosen"] == STAYS
    assert best_of(candidates[1:], profile, machine, "x").details["chosen"] == "sure"


@pytest.mark.parametrize("what", ["lost_ns_per_kib", "lost_ns_per_move"])
def test_nothing_moves_where_that_takes_more_from_compute_than_it_saves(what):
    size = 8 * MIB
    profile, free = make_profile([param("a", size, [0]), param("b", size, [3])], 6), make_machine(size, **LINKS)
    moving, staying = plan(profile, free, "sentinel"), plan(profile, free, "best-static")
    assert moving.migrations
    gain = staying.predicted_step_ns - moving.predicted_step_ns
    kib, count = sum(m.nbytes for m in moving.migrations) / 1024, len(moving.migrations)
    each = gain / (kib if what == "lost_ns_per_kib" else count)
    cheap, dear = (make_machine(size, **LINKS, **{what: times * each}) for times in (0.1, 4))
    assert plan(profile, cheap, "sentinel").migrations
    made = plan(profile, dear, "sentinel")
    assert not made.migrations
    assert made.predicted_step_ns == staying.predicted_step_ns


def test_others_are_made_where_a_worse_machine_spoils_the_fastest_and_only_there():
    """As above, over ten layers: two layers a move suffice for half the link too."""
    size = 8 * MIB
    profile, machine = make_profile([param("a", size, [0]), param("b", size, [5])], 10), make_machine(size, **LINKS)
    stays = persistent_plan(profile, [0, 1], fast_bytes=size)
    hasty, roomy = (
        persistent_plan(profile, [0, 1], moves, fast_bytes=size)
        for moves in (
            [(0, 0, 1, 1, 2), (1, 1, 0, 4, 5), (1, 0, 1, 6, 7), (0, 1, 0, 9, 10)],
            [(0, 0, 1, 1, 3), (1, 1, 0, 3, 5), (1, 0, 1, 6, 8), (0, 1, 0, 8, 10)],
        )
    )
    asked = []

    def others():
        asked.append("others")
        return iter([[], [("roomy", roomy)]])

    candidates = [("hasty", hasty), (STAYS, stays)]
    made = best_of(candidates, profile, machine, "x", forgiving=True, others=others)
    assert asked == ["others"]
    assert made.details["chosen"] == "roomy"
    tried = {name: simulate(p, profile, machine).step_ns for name, p in [*candidates, ("roomy", roomy)]}
    assert {**made.details["spoilt"], **made.details["alternatives"]} == tried
    assert all(step < made.predicted_step_ns for step in made.details["spoilt"].values())
    worse = simulate(roomy, profile, machine.worse()).step_ns
    assert made.details["worse"]["step_ns"] == worse <= made.details["worse"]["most_ns"]
    again = best_of([("roomy", roomy), (STAYS, stays)], profile, machine, "x", forgiving=True, others=others)
    trusting = best_of(candidates, profile, machine, "x", others=others)
    assert [plan.details["chosen"] for plan in (again, trusting)] == ["roomy", "hasty"]
    assert asked == ["others"]


@pytest.mark.parametrize(("forgiving", "tried"), [(None, False), (False, False), (True, True)])
def test_a_large_step_forgives_where_that_is_asked_for(monkeypatch, forgiving, tried):
    monkeypatch.setattr(portfolio, "is_large", lambda work: True)
    profile = make_profile([param("a", 8 * MIB, [0]), param("b", 8 * MIB, [3])], 6)
    made = plan(profile, make_machine(8 * MIB, **LINKS), forgiving=forgiving)
    labels = {made.details["chosen"], *made.details["alternatives"], *made.details.get("spoilt", {})}
    assert (STAYS in labels) == ("worse" in made.details) == tried


def test_large_steps_are_searched_less_hard():
    rounds = []
    for tensors, layers in ((100, 20), (3000, 200), (6000, 600)):
        profile = synthetic(tensors, layers)
        work = make_workload(profile, make_machine(footprint_bytes(profile) // 5), 0)
        rounds.append(sum(len(effort.dives) for effort in efforts_for(work)))
    assert rounds[0] > rounds[1] > rounds[2] == 1


def test_with_two_tiers_only_a_converged_program_is_rounded_in_a_step_of_middling_size():
    profile = synthetic(3000, 200)
    budget = footprint_bytes(profile) // 5
    for machine, promised in ((make_machine(budget), True), (three_tiers(budget), False)):
        exact, by_layers = efforts_for(make_workload(profile, machine, 0))
        assert exact.promised_by == (by_layers if promised else None)
        assert by_layers.promised_by is None


def test_a_program_that_may_not_be_priced_again_has_not_converged():
    profile = synthetic(120, 12)
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5), 0)
    assert not list(optimized(work, Effort(12, 2, 0, promised_by=Effort(12, 2, 0, pinned_entries=0))))
    assert list(optimized(work, Effort(12, 2, 0)))


def test_where_the_mix_by_layers_is_far_from_converged_no_other_is_looked_for(monkeypatch):
    """Two rounds of pricing are too few here, twenty suffice; solved are the one by layers, and the other where it can
    be of use."""
    profile = synthetic(120, 12)
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5), 0)
    solved = []
    solve = ColumnGeneration.solve

    def counted(self, rounds):
        solved.append(bool((self.master.candidates.unit_class >= 0).any()))
        return solve(self, rounds)

    monkeypatch.setattr(ColumnGeneration, "solve", counted)
    for rounds, pinned in ((2, False), (20, True)):
        solved.clear()
        by_layers = Effort(12, 2, rounds, pinned_entries=0)
        list(optimized(work, Effort(12, 2, rounds, promised_by=by_layers), by_layers))
        assert (solved[0], any(solved)) == (False, pinned)


@pytest.mark.parametrize(("middling", "descents"), [(0, 1), (10**9, 2)])
def test_where_a_plan_takes_seconds_a_search_for_fewer_links_continues_the_first_one(monkeypatch, middling, descents):
    """Two descents where each begins anew."""
    profile = synthetic(150, 10)
    monkeypatch.setattr(column_generation, "_MIDDLING", middling)
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5, **LINKS), 0)
    begun, ends = [], {}
    descend = column_generation.descend

    def counted(*given):
        begun.append(given)
        return descend(*given)

    monkeypatch.setattr(column_generation, "descend", counted)
    assert list(portfolio._drawn(work, efforts_for(work)[-1:], work.machine, "x", ends))
    assert next(portfolio._cautious(work, "x", ends))
    assert len(begun) == descents


def test_the_search_for_the_fastest_plan_on_this_machine_alone_drops_no_columns(monkeypatch):
    profile = synthetic(150, 10)
    monkeypatch.setattr(column_generation, "_MIDDLING", 0)
    machine, dropping = make_machine(footprint_bytes(profile) // 5, **LINKS), []
    drawn = portfolio._drawn

    def watched(work, efforts, *given):
        dropping.append(efforts[-1].nearest)
        return drawn(work, efforts, *given)

    monkeypatch.setattr(portfolio, "_drawn", watched)
    for forgiving in (False, True):
        plan(profile, machine, forgiving=forgiving)
    assert dropping[:2] == [None, column_generation._NEAREST]
