"""Grants, their migrations, and the time that parts spend in slow memory."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner.decision import (
    Choice,
    Decision,
    choose,
    decide,
    episodes_of,
    no_moves,
    slow_time,
    used_ns,
    whole_parts,
)
from sentinel.planner.pool import reserve
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 16


def work_of(*specs):
    return make_workload(make_profile(specs, 6), make_machine(), 0)


def leaving_in_every_gap(work):
    after, by = work.use_layer + 1, work.gaps[1]
    everywhere = np.ones(len(after), bool)
    return episodes_of(work, Choice(everywhere, everywhere, after, after + 1, by - 1, by))


def moved(work):
    episodes = leaving_in_every_gap(work)
    return decide(work, episodes, np.ones(len(episodes), bool), reserve(work, work.budget_bytes))


def test_who_comes_first_gets_the_room():
    work = work_of(param("a", LARGE, [1]), param("b", LARGE, [1]))
    episodes = leaving_in_every_gap(work)
    free = np.full(6, LARGE)
    assert choose(work, episodes, free, np.array([1, 0])).tolist() == [False, True]
    assert free.tolist() == [0, 0, 0, LARGE, LARGE, LARGE]  # promoted in layer 0, demoted in layer 2


def test_an_episode_gives_a_promotion_before_and_a_demotion_behind():
    decision = moved(work_of(param("p", LARGE, [0, 3])))
    moves = [(int(m["target"]), int(m["start"]), int(m["due"])) for m in decision.moves]
    assert sorted(moves) == [(0, 2, 3), (0, 5, 6), (1, 1, 2), (1, 4, 5)]
    assert decision.parts["tier"].tolist() == [0]  # the promotion that layer 5 starts is done as layer 0 begins


def test_without_a_grant_everything_is_slow_and_transients_share_addresses():
    work = work_of(param("p", LARGE, [0]), act("t", LARGE, 1, 4, [3]))
    episodes = leaving_in_every_gap(work)
    decision = decide(work, episodes, np.zeros(len(episodes), bool), reserve(work, 0))
    assert (decision.parts["tier"].tolist(), len(decision.moves)) == ([1, 1], 0)
    assert decision.parts["pooled"].tolist() == [False, True]


def test_slow_time_is_from_a_demotions_start_to_a_promotions_end():
    work = work_of(param("p", LARGE, [0, 3]))
    decision = moved(work)
    time = slow_time(decision, work.units, work.profile)
    assert time.spans_of(0) == [(1, 3), (4, 6)]
    assert (time.layers.tolist(), time.slow.tolist()) == ([4], [True])
    assert used_ns(work, decision, time, work.use_ns).tolist() == [0]


def test_what_never_moves_is_slow_all_its_life_or_not_at_all():
    work = work_of(param("p", LARGE, [0, 3]), act("t", LARGE, 1, 4, [3]))
    tiers = np.array([1, 0])
    decision = Decision(whole_parts(work.units, tiers), no_moves(), np.zeros(0, np.int64))
    time = slow_time(decision, work.units, work.profile)
    assert (time.spans_of(0), time.spans_of(1), time.slow.tolist()) == ([(0, 6)], [(1, 4)], [True, False])
    assert used_ns(work, decision, time, work.use_ns).tolist() == pytest.approx([work.use_ns[:2].sum(), 0])
