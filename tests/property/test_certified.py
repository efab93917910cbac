"""What prices prove about a program, against its optimum by simplex: never more, and all of it at the best prices."""

from __future__ import annotations

from itertools import pairwise

import highspy
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sentinel.core.cost import base_ns
from sentinel.planner import bound, exchange_bound
from sentinel.planner.bound_program import ExchangeProgram, Program, least_extra_ns, make_groups
from sentinel.planner.lower_bound import Certifier, by_prices
from tests.builders import MIB, machines, make_machine, profiles
from tests.three_tiers import three_tiers
from tests.unit.test_planner import network


def program_of(profile, machine, kind=Program):
    compute, traffic = base_ns(profile, machine)
    *middle, extra = least_extra_ns(profile, machine)
    groups = make_groups(profile, extra, machine.fast.capacity_bytes)
    program = kind(groups, profile, machine, compute, traffic)
    for tier, (here, behind) in enumerate(pairwise([*middle, extra]), 1):
        program.middle_tier(profile, sum(t.capacity_bytes for t in machine.tiers[1 : tier + 1]), here, behind)
    return program


def optimum(program):
    """(ms, duals) by simplex."""
    row, column, value = program.matrix()
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.n_columns, program.n_rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.columns()
    lp.row_lower_, lp.row_upper_ = np.concatenate(program.low), np.concatenate(program.high)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(row, np.arange(lp.num_row_ + 1)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = column.astype(np.int32), value
    solver = highspy.Highs()
    exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "small_matrix_value": 1e-12}
    for option, setting in {"output_flag": False, "solver": "simplex", **exact}.items():  # a tensor of 1 byte counts
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getInfo().objective_function_value, np.array(solver.getSolution().row_dual)


@settings(max_examples=38, deadline=None)
@given(
    profile=profiles(),
    machine=machines(),
    seed=st.integers(0, 1 << 30),
    kind=st.sampled_from([Program, ExchangeProgram]),
)
def test_no_prices_prove_more_than_the_optimum_and_the_best_ones_prove_it(profile, machine, seed, kind):
    program = program_of(profile, machine, kind)
    assume(len(program.groups.nbytes) and program.groups.use_ns.any())
    certifier = Certifier(program)
    best, duals = optimum(program)
    near = {"rel": 1e-6, "abs": 1e-6}
    assert certifier.least_ms(duals) == pytest.approx(best, **near)
    rng = np.random.default_rng(seed)
    for spread in (0.0, 0.1, 1.0, 30.0):
        noise = rng.normal(size=len(duals)) * spread
        assert certifier.least_ms(duals + noise) <= best * (1 + 1e-6) + 1e-6
        assert certifier.least_ms(duals * (1 + noise)) <= best * (1 + 1e-6) + 1e-6


def test_the_prices_of_more_fast_memory_prove_less_and_none_prove_the_floor():
    """The control: what the prices are matters, and neither proof is empty."""
    profile = network()
    small, large = (program_of(profile, make_machine(mib * MIB)) for mib in (16, 64))
    (best, duals), (_, others) = optimum(small), optimum(large)
    certifier = Certifier(small)
    floor = certifier.least_ms(np.zeros(len(duals)))
    assert floor == pytest.approx(small.least_ms.sum())
    assert floor * 1.01 < certifier.least_ms(others) < best * 0.999


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_prices_prove_what_middle_tiers_save_as_well(share):
    profile = network()
    machine = three_tiers(int(share * 50) * MIB)
    program = program_of(profile, machine)
    best, duals = optimum(program)
    assert program.most_saved_ms
    assert Certifier(program).least_ms(duals) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("mib", [8, 24, 48])
def test_the_planners_own_prices_prove_nearly_all_and_say_how_much_is_open(mib):
    profile, machine = network(), make_machine(mib * MIB)
    program = program_of(profile, machine)
    best = optimum(program)[0]
    proof = by_prices(Certifier(program), profile, machine, 60.0)
    assert program.least_ms.sum() * 1.01 < proof.ms <= best * (1 + 1e-9)
    assert proof.ms >= best * (1 - proof.open) * 0.999
    assert proof.open < 0.05


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(profile=profiles(), machine=machines())
def test_who_holds_room_on_one_side_only_is_never_slower(profile, machine):
    assert exchange_bound(profile, machine).step_ns <= bound(profile, machine).step_ns * 1.0001 + 1
    both, one = (program_of(profile, machine, kind) for kind in (Program, ExchangeProgram))
    assume(len(both.groups.nbytes) and both.groups.use_ns.any())
    assert optimum(one)[0] <= optimum(both)[0] * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("mib", [8, 24, 48])
def test_the_exchange_bound_is_near_the_optimum_of_its_program(mib):
    profile, machine = network(), make_machine(mib * MIB)
    best = optimum(program_of(profile, machine, ExchangeProgram))[0]
    found = exchange_bound(profile, machine)
    assert not found.loose
    assert best * 0.995 <= found.step_ns / 1e6 <= best * (1 + 1e-9)


def test_a_bound_cut_short_is_one_all_the_same_and_says_so():
    profile, machine = network(), make_machine(8 * MIB)
    cut, best = bound(profile, machine, time_limit_s=1e-9), bound(profile, machine)
    assert cut.step_ns <= best.step_ns
    assert "did not end within" in cut.loose
    assert not best.loose
