"""Migration intervals, what a length costs, and test and trial."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner import paper
from sentinel.planner.paper import interval_cost_ns, interval_cuts, lengths_to_try, make_episodes
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


def test_without_fast_memory_a_length_costs_all_slow_accesses():
    profile = make_profile([param("p", LARGE, [1, 4])], 6)
    work = make_workload(profile, make_machine(0), 0)
    assert interval_cost_ns(work, 2, reserve(work, 0)) == pytest.approx(work.use_ns.sum(), abs=1)


def test_a_length_costs_what_its_transfers_take_beyond_the_interval():
    """8 MB at 1 GB/s are promoted and demoted in intervals of 1 ms each: 7 ms of each show."""
    profile = make_profile([param("p", 8_000_000 // 4096 * 4096, [1])], 4, layer_ns=1_000_000)
    work = make_workload(profile, make_machine(promote=GB, demote=GB), 0)
    nbytes = int(work.units.nbytes[0])
    exposed = nbytes - np.maximum(work.compute_ns, work.traffic_ns)[0]
    assert interval_cost_ns(work, 1, reserve(work, work.budget_bytes)) == pytest.approx(2 * exposed, rel=1e-6)


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
