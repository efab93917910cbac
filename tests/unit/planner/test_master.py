"""The master program on steps whose optimum is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.planner.master import Columns, Master
from sentinel.planner.pricing import Pricer, Prices
from sentinel.planner.relaxation import find_candidates, merge_alike
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 20


def free_of_charge(length):
    none = np.zeros(length)
    return Prices(none, none, none, np.ones(length), none[:, None], none)


def master_of(work):
    """With one column a class: it stays in fast memory all its life."""
    merged, of = merge_alike(work)
    columns = Columns(merged)
    columns.add(Pricer(merged).best(free_of_charge(work.n_layers))[0])
    return Master(merged, columns, find_candidates(work, merged, of))


def slow_step_ns(work):
    return float(work.profile.layer_ns.sum() + work.use_ns.sum())


def test_half_the_room_serves_half_the_unit_and_a_byte_of_it_is_worth_what_a_byte_saves():
    profile = make_profile([param("p", LARGE, [0, 2])], 4)
    work = make_workload(profile, make_machine(LARGE // 2), 0)
    mix = master_of(work).solve()
    assert mix.share.tolist() == pytest.approx([0.5])
    assert mix.step_ns == pytest.approx(slow_step_ns(work) - work.use_ns.sum() / 2, rel=1e-6)
    assert mix.prices.room.sum() * LARGE == pytest.approx(work.use_ns.sum(), rel=1e-3)


def test_the_most_useful_bytes_get_the_room():
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    work = make_workload(profile, make_machine(LARGE), 0)
    master = master_of(work)
    share = dict(zip(master.columns.unit.tolist(), master.solve().share.tolist(), strict=True))
    assert share == pytest.approx({0: 0, 1: 1})


def test_a_fixed_pool_takes_its_room_until_it_is_released():
    profile = make_profile([param("p", LARGE, [0, 2])], 4)
    work = make_workload(profile, make_machine(LARGE // 2), 0)
    master = master_of(work)
    before = master.solve().step_ns
    master.fix_pool(work, np.full(4, LARGE / 4), np.ones(1))
    assert master.solve().share.tolist() == pytest.approx([0.25])
    master.fix_pool(work, np.full(4, LARGE / 2), np.zeros(1))  # none of the class is left to have a column
    assert master.solve().share.tolist() == pytest.approx([0])
    master.release_pool()
    assert master.solve().step_ns == pytest.approx(before)


def test_a_transient_may_be_pinned_as_far_as_the_bounds_allow():
    work = make_workload(make_profile([act("t", LARGE, 0, 3, [2])], 4), make_machine(2 * LARGE), 0)
    master = master_of(work)
    assert master.solve().step_ns == pytest.approx(work.profile.layer_ns.sum(), rel=1e-6)
    group = np.flatnonzero(master.candidates.unit_class >= 0)
    master.limit_pinned(group, np.ones(1), np.ones(1))
    assert master.solve().pinned.tolist() == pytest.approx([1])


def test_a_timeline_that_is_known_is_no_new_column():
    work = make_workload(make_profile([param("p", LARGE, [0, 2]), param("q", LARGE, [1])], 4), make_machine(), 0)
    columns, choice = Columns(work), Pricer(work).best(free_of_charge(4))[0]
    assert (columns.add(choice), columns.add(choice), columns.n) == (2, 0, 2)
    owner, episodes = columns.episodes
    assert columns.unit[owner].tolist() == episodes.unit.tolist() == [0, 1]
    served, use = columns.uses
    assert columns.unit[served].tolist() == work.use_unit[use].tolist() == [0, 0, 1]


def test_a_copy_of_a_table_grows_by_itself():
    work = make_workload(make_profile([param("p", LARGE, [0, 2]), param("q", LARGE, [1])], 4), make_machine(), 0)
    columns, everything = Columns(work), Pricer(work).best(free_of_charge(4))[0]
    columns.add(replace(everything, fast=everything.fast & (work.use_unit == 0)))
    copied = columns.copy()
    assert (copied.add(everything), copied.unit.tolist()) == (1, [0, 1])
    assert (columns.n, columns.unit.tolist(), len(columns.episodes[0])) == (1, [0], 1)


def test_a_master_that_starts_from_the_basis_of_another_is_solved_already():
    profile = make_profile([param("p", LARGE, [0, 2]), param("q", LARGE, [1])], 4)
    master = master_of(make_workload(profile, make_machine(LARGE), 0))
    step_ns = master.solve().step_ns
    again = master.continued(master.work, 0)
    assert again.solve().step_ns == pytest.approx(step_ns)
    assert again.highs.getInfo().simplex_iteration_count == 0


def test_what_is_left_when_far_columns_go_is_solved_already_and_they_may_come_back():
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    master = master_of(make_workload(profile, make_machine(LARGE // 2), 0))
    choice, before = Pricer(master.work).best(free_of_charge(4))[0], master.solve()
    assert master.drop_far(before) is before
    master.nearest = 0
    left = master.drop_far(before)
    assert (master.columns.unit.tolist(), left.share.tolist()) == ([1], pytest.approx([0.5]))
    assert master.solve().step_ns == pytest.approx(before.step_ns)
    assert master.highs.getInfo().simplex_iteration_count == 0
    assert master.columns.add(choice) == 1
    assert master.solve().share.tolist() == pytest.approx([0.5, 0])


def test_columns_that_are_kept_are_not_added_again_and_others_are():
    profile = make_profile([param("p", LARGE, [0, 2]), param("q", LARGE, [1])], 4)
    merged, _ = merge_alike(make_workload(profile, make_machine(LARGE), 0))
    columns, choice = Columns(merged), Pricer(merged).best(free_of_charge(4))[0]
    assert columns.add(choice) == 2
    kept = columns.only(np.array([False, True]), merged)
    assert (kept.n, kept.unit.tolist(), kept.uses[0].tolist()) == (1, [1], [0])
    assert kept.add(choice) == 1
    assert kept.unit.tolist() == [1, 0]
