"""Migration intervals, what a length costs, and test and trial."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner import paper
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import decide
from sentinel.planner.paper import (
    Sentinel2021,
    grant,
    interval_cuts,
    lazy_episodes,
    lengths_to_try,
    make_episodes,
)
from sentinel.planner.pool import reserve
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate
from tests.builders import GB, make_machine, make_profile, param, persistent_plan

LARGE = 1 << 16


def test_what_an_interval_uses_comes_in_the_one_before_and_leaves_within_it():
    work = make_workload(make_profile([param("p", LARGE, [4])], 6), make_machine(), 0)
    episodes = make_episodes(work, interval_cuts(6, 2))
    (row,) = zip(episodes.held_from, episodes.begin, episodes.end, episodes.held_until, strict=True)
    assert row == (2, 4, 5, 6)
    assert (episodes.promote.tolist(), episodes.demote.tolist()) == ([True], [True])


def test_a_gap_too_short_for_both_moves_is_bridged():
    work = make_workload(make_profile([param("p", LARGE, [0, 3])], 4), make_machine(), 0)
    assert make_episodes(work, interval_cuts(4, 2)).promote.tolist() == [False]


def test_many_layers_are_tried_with_ever_sparser_lengths():
    assert interval_cuts(7, 3).tolist() == [0, 3, 6]
    assert lengths_to_try(5) == [1, 2, 3, 4, 5]
    many = lengths_to_try(1000)
    assert (many[0], many[-1], len(many) <= 40, many == sorted(set(many))) == (1, 1000, True, True)


def turns(room, n_layers=16):
    """`p` is used in layers 1 and 10, `q` between them, in a fast memory of `room` bytes: what lazy eviction makes of
    intervals of two layers, as (unit, held from, held until, promoted, demoted)."""
    specs = [param("p", LARGE, [1, 10]), param("q", LARGE, [6])]
    work = make_workload(make_profile(specs, n_layers), make_machine(room), 0)
    found = lazy_episodes(work, interval_cuts(n_layers, 2), reserve(work, work.budget_bytes))
    columns = (found.unit, found.held_from, found.held_until, found.promote, found.demote)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_what_is_used_again_stays_while_nothing_else_needs_its_room():
    assert turns(2 * LARGE) == [(0, 0, 16, False, False), (1, 0, 16, False, False)]


def test_what_another_interval_needs_the_room_of_leaves_and_comes_back():
    """`q` holds its room in layers 4 to 7; `p` can stay from layer 8 on round the step's end, but not between."""
    assert turns(LARGE) == [(0, 8, 20, True, True), (1, 4, 8, True, True)]


def test_what_found_no_room_is_not_kept():
    assert turns(0) == []


def test_lazy_eviction_moves_less_and_is_no_slower_than_eager_on_a_slow_link():
    specs = [param(f"w{k}", 4 << 20, [k, 23 - k]) for k in range(12)]
    profile = make_profile(specs, 24, layer_ns=1_000_000)
    machine = make_machine(20 << 20, promote=2 * GB, demote=2 * GB)
    work = make_workload(profile, machine, 0)
    short = reserve(work, work.budget_bytes)
    for mil in (1, 2, 3, 4, 6):
        cuts = interval_cuts(24, mil)
        eager, lazy = make_episodes(work, cuts), lazy_episodes(work, cuts, short)
        kept = grant(work, eager, work.budget_bytes - short.held_bytes), np.ones(len(lazy), bool)
        plans = [
            assemble(decide(work, e, g, short), work.units, profile, machine, policy="x", footprint_bytes=0)
            for e, g in zip((eager, lazy), kept, strict=True)
        ]
        before, after = (simulate(each, profile, machine).step_ns for each in plans)
        assert len(plans[1].migrations) < len(plans[0].migrations)
        assert after <= before
        assert served_ns(lazy, kept[1]) == pytest.approx(served_ns(eager, kept[0]), rel=1e-5)


def served_ns(episodes, granted):
    return episodes.value_ns[granted].sum()


def test_every_interval_length_is_simulated_and_the_shortest_step_taken():
    """50 layers, which a sample of 40 lengths would not try all of: none that is tried alone gives a shorter step."""
    specs = [param(f"w{k}", 4 << 20, [k, 49 - k]) for k in range(25)]
    profile = make_profile(specs, 50, layer_ns=1_000_000)
    machine = make_machine(36 << 20, promote=3 * GB, demote=3 * GB)
    made = Sentinel2021().plan(profile, machine)
    assert sorted(made.details["mil_step_ns"], key=int) == [str(mil) for mil in range(1, 51)]
    alone = [Sentinel2021(mil).plan(profile, machine) for mil in (1, 17, 23, 29, made.details["mil"])]
    steps = [each.predicted_step_ns or 0 for each in alone]
    assert made.predicted_step_ns == steps[-1] == min(steps)
    assert made.predicted_step_ns <= min(made.details["mil_step_ns"].values())


def test_of_a_step_that_is_too_large_a_sample_of_lengths_is_simulated(monkeypatch):
    monkeypatch.setattr(paper, "_MOST_WORK", 20 * 45)
    profile = make_profile([param(f"w{k}", 4 << 20, [3 * k]) for k in range(20)], 60, layer_ns=1_000_000)
    made = Sentinel2021().plan(profile, make_machine(36 << 20, promote=3 * GB, demote=3 * GB))
    tried = sorted(int(mil) for mil in made.details["mil_step_ns"])
    assert tried == lengths_to_try(60, 45)
    assert len(tried) < 60


@pytest.mark.parametrize(("link", "kept"), [(GB, False), (10 * GB, True)])
def test_a_prefetch_that_costs_more_than_it_saves_is_left_out(link, kept):
    """8 MiB, used once: over a link of 1 GB/s the step waits 7 ms to save 0.75 ms."""
    profile = make_profile([param("p", 8 << 20, [1])], 4, layer_ns=1_000_000)
    machine = make_machine(promote=link, demote=link)

    def draw(granted):
        moves = [(0, 1, 0, 0, 1), (0, 0, 1, 2, 3)] if granted[0] else []
        return persistent_plan(profile, [1], moves)

    granted, plan, run = paper.test_and_trial(
        np.array([True]), np.array([0]), draw, lambda plan: simulate(plan, profile, machine)
    )
    assert (bool(granted[0]), bool(plan.migrations)) == (kept, kept)
    assert run.step_ns == simulate(plan, profile, machine).step_ns
