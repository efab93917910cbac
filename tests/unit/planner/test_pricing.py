"""The cheapest timelines at given prices, against all of them tried."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sentinel.planner.pricing import Pricer, Prices, RangeMinimum, Ranges
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 16
LENGTH = 10


def prices(room=0.0, promote=0.0, demote=0.0):
    room, promote, demote = (np.broadcast_to(np.asarray(x, float), LENGTH).copy() for x in (room, promote, demote))
    return Prices(room, promote, demote, np.ones(LENGTH), room[:, None], np.ones(LENGTH))


def work_of(*specs):
    return make_workload(make_profile(specs, LENGTH), make_machine(), 0)


def test_the_least_of_any_range_is_found_at_its_first_place():
    values = np.array([3.0, 1.0, 2.0, 1.0, 5.0])
    ranges = [(low, high) for low in range(5) for high in range(low, 6)]
    low, high = np.array(ranges).T
    found = RangeMinimum(values).argmin(Ranges.of(low, high, len(values))).tolist()
    assert found == [low + int(values[low:high].argmin()) if high > low else -1 for low, high in ranges]


def test_where_nothing_costs_all_is_fast_and_where_room_costs_more_than_it_saves_nothing_is():
    work = work_of(param("p", LARGE, [0, 5]), act("t", LARGE, 1, 5, [4]))
    choice, saved = Pricer(work).best(prices())
    assert choice.fast.all()
    assert saved.tolist() == pytest.approx([work.use_ns[:2].sum(), work.use_ns[2:].sum()])
    choice, saved = Pricer(work).best(prices(room=1.0))
    assert (choice.fast.tolist(), saved.tolist()) == ([False] * 4, [0, 0])


def test_a_unit_leaves_for_the_layers_in_which_room_is_dear():
    work = work_of(param("p", LARGE, [0, 5]))
    room = np.zeros(LENGTH)
    room[2:4] = 1.0
    choice, saved = Pricer(work).best(prices(room=room))
    assert (choice.fast.tolist(), choice.parted.tolist()) == ([True, True], [True, False])
    assert (choice.leave[0], choice.left[0], choice.arrive[0], choice.arrived[0]) == (1, 2, 4, 5)
    assert saved.tolist() == pytest.approx([work.use_ns.sum()])


def test_moves_dearer_than_the_slow_use_are_not_made():
    work = work_of(param("p", LARGE, [0, 5]))
    room = np.zeros(LENGTH)
    room[2:4] = 1.0
    choice, _ = Pricer(work).best(prices(room=room, promote=1.0, demote=1.0))
    assert choice.fast.tolist() == [False, False]


@pytest.mark.parametrize("seed", range(20))
def test_no_timeline_of_a_ring_is_cheaper_than_the_one_found(seed):
    """All fates of three uses, with the cheapest moves in each gap."""
    rng = np.random.default_rng(seed)
    work = work_of(param("p", LARGE, [0, 3, 7]))
    at = prices(*(rng.random(LENGTH) * 0.02 for _ in range(3)))
    room, up, down = (np.tile(x, 2) for x in (at.room, at.promote, at.demote))
    uses, behind = [0, 3, 7], [3, 7, LENGTH]

    def leave(after, by):
        return min((down[k] + room[after : k + 1].sum() for k in range(after, by)), default=np.inf)

    def arrive(after, by):
        return min((up[k] + room[k:by].sum() for k in range(after, by)), default=np.inf)

    def gap(fast, next_fast, use, by):
        if not fast:
            return arrive(use, by) if next_fast else 0.0
        if not next_fast:
            return leave(use + 1, by)
        both = min(leave(use + 1, k) + arrive(k, by) for k in range(use + 2, by))
        return min(room[use + 1 : by].sum(), both)

    def cost(fates):
        here = sum(LARGE * room[u] if f else ns for f, u, ns in zip(fates, uses, work.use_ns, strict=True))
        return here + LARGE * sum(gap(f, fates[(i + 1) % 3], uses[i], behind[i]) for i, f in enumerate(fates))

    best = min(cost(fates) for fates in product([True, False], repeat=3))
    _, saved = Pricer(work).best(at)
    found = work.use_ns.sum() - saved[0]
    assert best <= found * (1 + 1e-9)
    assert found <= min(
        best * 1.05, work.use_ns.sum() * (1 + 1e-9)
    )  # of two moves in one gap it takes the way back first
