"""Timelines for slow memory that cannot be used in place."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.errors import Infeasible
from sentinel.planner.decision import episodes_of
from sentinel.planner.fetching import ahead, fetches, just_in_time
from sentinel.planner.workload import Workload, make_workload
from tests.builders import MIB, TensorSpec, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers

TURNS = make_profile([param("a", MIB, [0]), param("b", MIB, [4])], 8)


def work(fast_bytes: int = MIB) -> Workload:
    return make_workload(TURNS, make_machine(fast_bytes, addressable=False), 0)


def test_what_leaves_comes_back_so_many_layers_ahead():
    for layers in (1, 3):
        episodes = episodes_of(work(), ahead(work(), np.ones(2, bool), layers))
        assert (episodes.begin % 8).tolist() == [0, 4]
        assert (episodes.begin - episodes.held_from).tolist() == [layers, layers]
        assert (episodes.end % 8).tolist() == [1, 5]


def test_a_gap_that_is_too_short_to_leave_and_come_back_is_bridged():
    for layers, away in ((6, True), (7, False)):
        assert ahead(work(), np.ones(2, bool), layers).parted.tolist() == [away, away]


def test_a_program_begins_with_what_stays_and_with_what_needs_the_least_room():
    first, second, *_ = fetches(work())
    assert not first.parted.any()
    assert second.parted.all()
    assert (second.arrived - second.arrive).tolist() == [1, 1]


def test_where_there_is_room_what_is_needed_soonest_stays():
    assert len(just_in_time(work()).moves) == 4
    assert len(just_in_time(work(2 * MIB)).moves) == 0


def test_what_a_layer_needs_beside_its_neighbours_is_told_where_it_does_not_fit():
    profile = make_profile([param("a", MIB, [0]), param("b", MIB, [1]), act("t", MIB, 1, 2)], 6)
    with pytest.raises(Infeasible) as caught:
        just_in_time(make_workload(profile, make_machine(2 * MIB, addressable=False), 0))
    assert caught.value.needed_bytes == 3 * MIB  # in layer 1 `a` leaves, and `b` and `t` are used
    just_in_time(make_workload(profile, make_machine(3 * MIB, addressable=False), 0))


def test_only_what_is_used_in_slow_memory_has_to_be_fetched():
    """A tensor that is never touched may stay away, and so may one that is only born there."""
    born_only = TensorSpec("born only", MIB, 0, 4, {})
    profile = make_profile([param("idle", MIB, []), param("a", MIB, [0]), born_only], 8)
    found = make_workload(profile, make_machine(MIB, addressable=False), 0)
    assert found.fetched.tolist() == [False, True, False]
    assert found.touched.tolist() == [True, False]
    assert not make_workload(profile, three_tiers(), 0).fetched.any()
