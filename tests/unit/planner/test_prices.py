"""Prices at which about as much is asked for as there is."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner.column_generation import descend
from sentinel.planner.master import Columns
from sentinel.planner.pricing import Pricer
from sentinel.planner.relaxation import find_candidates, merge_alike
from sentinel.planner.slow_tier_assignment import room_cost_ns
from sentinel.planner.workload import make_workload
from tests.builders import make_machine, make_profile, param

LARGE = 1 << 20


def room_cost(nbytes, gain, capacity, start=0, stop=4):
    n = len(gain)
    spans = np.full(n, start), np.full(n, stop)
    return room_cost_ns(np.arange(n), *spans, np.array(nbytes), np.array(gain, float), capacity, 4)


def test_of_two_that_want_all_the_room_only_the_one_that_gains_more_is_left():
    most, least = room_cost([100, 100], [10, 1], 100)
    assert most < 10
    assert least > 1


def test_room_for_all_costs_next_to_nothing():
    assert (room_cost([100, 100], [10, 1], 1000) < 0.01).all()


def test_room_costs_in_the_layers_that_are_full_only():
    item = np.array([0, 1, 2])
    start, stop = np.array([0, 0, 2]), np.array([2, 2, 4])
    cost = room_cost_ns(item, start, stop, np.full(3, 100), np.full(3, 5.0), 100, 4)
    assert cost[0] == cost[1] > cost[2]


@pytest.mark.parametrize(("budget", "dear"), [(LARGE, True), (4 * LARGE, False)])
def test_the_descent_ends_near_the_prices_that_clear_the_room(budget, dear):
    """Two tensors alike in size, one read three times as often: with room for one its price is between their gains."""
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    work = make_workload(profile, make_machine(budget), 0)
    merged, of = merge_alike(work)
    columns = Columns(merged)
    prices = descend(merged, Pricer(merged), columns, find_candidates(work, merged, of), rounds=60, keep=6)
    cold, hot = work.use_ns[0], work.use_ns[1:].sum()
    paid = float(prices.room.sum()) * LARGE
    assert (cold * 0.8 < paid < hot * 1.2) if dear else paid < cold * 0.2
    assert 1 in columns.unit  # `hot` was worth it at some prices
