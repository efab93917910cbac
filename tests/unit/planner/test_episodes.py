"""Choices by use, as stretches in fast memory."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from sentinel.planner.decision import Choice, bridge_shortest_gaps, episodes_of, room_bytes, served_uses
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 16


def work_of(*specs, n_layers=6):
    return make_workload(make_profile(specs, n_layers), make_machine(), 0)


def choice_of(work, fast, parted):
    """Out in the layer behind a use, back in the one before the next."""
    after, by = work.use_layer + 1, work.gaps[1]
    return Choice(np.array(fast), np.array(parted), after, after + 1, by - 1, by)


def rows(episodes):
    columns = [getattr(episodes, field.name).tolist() for field in fields(episodes) if field.name != "value_ns"]
    return sorted(zip(*columns, strict=True))


def test_the_gap_behind_the_last_use_goes_round_the_ring_for_what_persists_only():
    work = work_of(param("p", LARGE, [0, 3]), act("t", LARGE, 1, 4, [3]))
    follower, layer, exists = work.gaps
    assert (follower.tolist(), layer.tolist()) == ([1, 0, 3, 2], [3, 6, 3, 1])
    assert exists.tolist() == [True, True, True, False]


def test_a_unit_that_never_leaves_is_one_episode_of_the_whole_step():
    work = work_of(param("p", LARGE, [0, 3]))
    episodes = episodes_of(work, choice_of(work, [True, True], [False, False]))
    assert rows(episodes) == [(0, 0, 0, 6, 6, False, False)]
    assert episodes.value_ns.tolist() == pytest.approx([work.use_ns.sum()], abs=1)


def test_a_unit_that_leaves_in_its_gaps_is_promoted_before_each_use_and_demoted_behind_it():
    work = work_of(param("p", LARGE, [0, 3]))
    episodes = episodes_of(work, choice_of(work, [True, True], [True, True]))
    # unit, held from, begin, end, held until: the use in layer 0 is promoted for in layer 5 of the step before
    assert rows(episodes) == [(0, -1, 0, 1, 2, True, True), (0, 2, 3, 4, 5, True, True)]
    assert room_bytes(work, episodes).tolist() == [LARGE] * 6


def test_a_transient_is_born_fast_and_leaves_without_a_promotion():
    work = work_of(act("t", LARGE, 1, 4, [3]))
    assert rows(episodes_of(work, choice_of(work, [True, False], [False, False]))) == [(0, 1, 1, 2, 3, False, True)]


def test_a_transient_that_stays_holds_its_room_until_it_is_freed():
    work = work_of(act("t", LARGE, 1, 5, [3]))
    episodes = episodes_of(work, choice_of(work, [True, True], [False, False]))
    assert rows(episodes) == [(0, 1, 1, 5, 5, False, False)]
    assert room_bytes(work, episodes).tolist() == [0, LARGE, LARGE, LARGE, LARGE, 0]


def test_gaps_are_bridged_from_the_shortest_on_while_there_is_room():
    work = work_of(param("p", LARGE, [0, 3]), n_layers=10)  # gaps of layers 1 and 2, and of layers 4 to 9
    both, free = np.array([True, True]), np.full(10, LARGE)
    after, by = work.use_layer + 1, work.gaps[1]
    assert bridge_shortest_gaps(work, both, free, after, by).tolist() == [False, False]
    free[5] = 0
    assert bridge_shortest_gaps(work, both, free, after, by).tolist() == [False, True]
    free[1] = 0
    assert bridge_shortest_gaps(work, both, free, after, by).tolist() == [True, True]
    between = after + 1, by - 1  # layers 1 and 2 are those of the moves
    assert bridge_shortest_gaps(work, both, free, *between).tolist() == [False, True]


def test_each_use_is_served_by_the_stay_that_it_falls_into():
    """`p` leaves behind layers 0 and 3, `t` behind 1, and `w` never; each stay may be refused by itself."""
    work = work_of(param("p", LARGE, [0, 3]), act("t", LARGE, 1, 5, [4]), param("w", LARGE, [2, 5]))
    parted = np.array(work.use_layer) < 4
    parted[work.units.persistent[work.use_unit] & np.isin(work.use_layer, [2, 5])] = False
    choice = choice_of(work, [True] * 6, parted)
    episodes = episodes_of(work, choice)
    assert len(episodes) == 5
    uses = list(zip(work.use_unit.tolist(), (work.use_layer % 6).tolist(), strict=True))
    for episode in range(5):
        served = served_uses(work, choice, np.arange(5) == episode)
        stay = {k % 6 for k in range(int(episodes.begin[episode]), int(episodes.end[episode]))}
        within = [unit == episodes.unit[episode] and layer in stay for unit, layer in uses]
        assert served.tolist() == within
    assert not served_uses(work, choice, np.zeros(5, bool)).any()
    assert served_uses(work, choice, np.ones(5, bool)).all()


def test_a_stay_round_the_ring_serves_the_uses_at_both_ends():
    """Away between layers 1 and 4 only: what is used in 4 and 5 is still there in 0 and 1."""
    work = work_of(param("p", LARGE, [0, 1, 4, 5]))
    choice = choice_of(work, [True] * 4, [False, True, False, False])
    assert rows(episodes_of(work, choice)) == [(0, 3, 4, 8, 9, True, True)]
    assert served_uses(work, choice, np.array([True])).tolist() == [True] * 4
