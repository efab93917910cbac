"""Classes of tensors that are alike, and the instants at which room is counted."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.cost import slow_extra_ns
from sentinel.planner.bound_program import make_groups
from sentinel.planner.relaxation import alike, alive_at, instants, merge_alike
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 16


@pytest.mark.parametrize("rows", [0, 1, 200])
def test_rows_alike_are_those_that_numpy_finds_column_by_column(rows):
    rng = np.random.default_rng(rows)
    keys = rng.integers(-2, 3, (3, rows))
    found = alike(keys[0] > 0, keys[0].astype(np.int32), keys[1], keys[2].astype(np.float64))
    _, first, of = np.unique(np.stack([keys[0] > 0, *keys]), axis=1, return_index=True, return_inverse=True)
    assert [x.tolist() for x in found] == [first.tolist(), of.reshape(-1).tolist()]


def test_units_used_alike_are_one_class_with_their_sums():
    profile = make_profile([param("a", LARGE, [0, 2]), param("b", 3 * LARGE, [0, 2]), param("c", LARGE, [1])], 3)
    work = make_workload(profile, make_machine(), 0)
    merged, of = merge_alike(work)
    assert of.tolist() == [0, 0, 1]
    assert merged.units.nbytes.tolist() == [4 * LARGE, LARGE]
    assert merged.use_layer.tolist() == [0, 2, 1]
    a, b, c = work.use_ns[:2], work.use_ns[2:4], work.use_ns[4:]
    assert merged.use_ns.tolist() == pytest.approx([*(a + b), *c])


def test_a_class_has_one_slow_tier_and_one_life():
    """Alike but for their lives: the one is freed a layer later."""
    profile = make_profile([act("a", LARGE, 0, 2, [1]), act("b", LARGE, 0, 3, [1])], 4)
    assert len(set(merge_alike(make_workload(profile, make_machine(), 0))[1].tolist())) == 2


def test_life_at_an_instant_goes_round_the_ring():
    """Born at event 3 of 4, dead at event 2 of the next step."""
    event = np.array([-1, 0, 1, 2, 3])
    assert alive_at(event, np.array(3), np.array(6), 4).tolist() == [False, True, True, False, True]


def test_room_is_counted_where_most_is_alive_and_where_the_others_are():
    """`x` is freed before `y` and `z` are born: the peak does not see it."""
    profile = make_profile([act("x", 4096, 0, 1, dies_early=True), act("y", 4096, 0, 1), act("z", 4096, 0, 1)], 2)
    assert instants(profile).tolist() == [[2, 0, -1], [-1, -1, -1]]


def test_the_bound_leaves_out_what_is_negligible_and_groups_what_is_alike():
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [0]), param("tiny", 4096, [0])], 2)
    machine = make_machine()
    groups = make_groups(profile, slow_extra_ns(profile, machine, 1), budget=1 << 30)
    assert groups.of.tolist() == [0, 0, -1]
    assert groups.nbytes.tolist() == [2 * LARGE]
    assert groups.use_ns.tolist() == pytest.approx([2 * LARGE * 0.09])
