"""The relaxation and its rounding on steps whose best plan is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.traces.synthetic import synthetic
from sentinel.planner import column_generation
from sentinel.planner.assemble import footprint_bytes
from sentinel.planner.column_generation import Effort, optimized, start_column_generation
from sentinel.planner.workload import make_workload
from tests.builders import GB, act, make_machine, make_profile, param

LARGE = 1 << 20
EFFORT = Effort(60, 6, 10)


def test_the_relaxed_step_is_that_of_the_hot_tensor_in_fast_memory():
    """Links so slow that nothing can move: with room for one of two, the hot one has it."""
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    work = make_workload(profile, make_machine(LARGE, promote=1, demote=1), 0)
    generation = start_column_generation(work, EFFORT)
    mix = generation.solve(20)
    assert generation.converged
    assert mix.step_ns == pytest.approx(profile.layer_ns.sum() + work.use_ns[0], rel=1e-4)
    (label, decision), *_ = optimized(work, EFFORT)
    assert label == "optimized, 0 dives"
    assert len(list(optimized(work, EFFORT, EFFORT))) == 1  # it is near the relaxed step: no search finds much better
    assert dict(zip(decision.parts["unit"].tolist(), decision.parts["tier"].tolist(), strict=True)) == {0: 1, 1: 0}


def test_pricing_finds_the_timelines_that_take_turns():
    """Two tensors used in turn and links fast enough: each is promoted for its use into the room of the other."""
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [3])], 6, layer_ns=10_000_000)
    work = make_workload(profile, make_machine(LARGE, promote=10 * GB, demote=10 * GB), 0)
    assert start_column_generation(work, EFFORT).solve(20).step_ns == pytest.approx(profile.layer_ns.sum(), rel=1e-3)
    (_, decision), *_ = optimized(work, EFFORT)
    assert np.bincount(decision.moves["part"]).tolist() == [2, 2]


def test_a_pool_that_is_fixed_leaves_less_to_the_rest():
    profile = make_profile([param("p", LARGE, [0, 1, 2]), act("t", LARGE, 0, 3, [2])], 4)
    work = make_workload(profile, make_machine(LARGE, promote=1, demote=1), 0)
    generation = start_column_generation(work, EFFORT)
    nobody = np.zeros(0, bool)
    pinned = generation.round_to_pool(nobody, np.array([1]), 10)
    assert pinned.short.pooled.tolist() == [1]
    without = generation.round_to_pool(nobody, np.zeros(0, np.int64), 10)
    assert without.mix.step_ns < pinned.mix.step_ns  # `p` is worth more than `t`


def test_a_search_that_splits_no_unit_keeps_them_whole():
    profile = make_profile([param(name, LARGE, [0, 1]) for name in ("a", "b")], 4)
    work = make_workload(profile, make_machine(LARGE * 3 // 2, promote=1, demote=1), 0)
    (_, decision), *_ = optimized(work, Effort(60, 6, 2, whole_nodes=50))
    assert decision.parts["pages"].tolist() == [LARGE // 4096] * 2
    assert sorted(decision.parts["tier"].tolist()) == [0, 1]


def test_efforts_that_share_a_descent_decide_as_each_does_alone():
    profile = synthetic(150, 10)
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5), 0)
    first, second = Effort(20, 3, 0, dives=(0, 3)), Effort(20, 3, 0, pinned_entries=0)
    together = list(optimized(work, first, second))
    alone = [*optimized(work, first), *optimized(work, second)]
    assert [label for label, _ in together] == ["optimized, 0 dives", "optimized, 3 dives", "optimized by layers"]
    for (label, one), (other_label, other) in zip(together, alone, strict=True):
        assert (label, one.details) == (other_label, other.details)
        assert one.parts.tolist() == other.parts.tolist()
        assert one.moves.tolist() == other.moves.tolist()


def test_a_search_for_other_links_that_continues_one_finds_a_step_as_short(monkeypatch):
    monkeypatch.setattr(column_generation, "_NEAREST", 20)
    profile = synthetic(400, 20)
    links = {"promote": 10 * GB, "demote": 10 * GB}
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5, **links), 0)
    slower = replace(work, machine=work.machine.with_links_at(0.5))
    first = start_column_generation(work, EFFORT)
    first.solve(60)
    continued, anew = first.continued(slower), start_column_generation(slower, EFFORT)
    assert continued.columns.n < first.columns.n
    found = [each.solve(60).step_ns for each in (continued, anew)]
    assert continued.converged
    assert anew.converged
    assert found[0] == pytest.approx(found[1], rel=2e-3)


def test_a_search_that_drops_columns_ends_with_few_and_finds_a_step_as_short():
    profile = synthetic(400, 20)
    links = {"promote": 10 * GB, "demote": 10 * GB}
    work = make_workload(profile, make_machine(footprint_bytes(profile) // 5, **links), 0)
    every, few = (start_column_generation(work, replace(EFFORT, nearest=nearest)) for nearest in (None, 20))
    found = [each.solve(60).step_ns for each in (every, few)]
    assert few.columns.n < every.columns.n
    assert few.converged
    assert found[1] == pytest.approx(found[0], rel=2e-3)
