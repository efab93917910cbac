"""Linear programs as the solver takes them, against a program whose solution is known."""

from __future__ import annotations

import numpy as np

from sentinel.planner.linear_program import colwise, solver_of


def test_entries_of_one_place_are_added_up_by_column() -> None:
    one, two = np.array([1]), np.array([0, 1])
    starts, row, value = colwise([(one, one, np.array([2.0])), (two, one.repeat(2), np.array([7.0, 3.0]))], 3, 2)
    assert (starts.tolist(), row.tolist(), value.tolist()) == ([0, 0, 2, 2], [0, 1], [7.0, 5.0])


def test_a_solver_has_all_of_the_program_that_it_is_told() -> None:
    """x + 2 y is least for x + y >= 3 and x <= 1, of which x is told in two halves."""
    cost, columns = np.array([1.0, 2.0]), (np.zeros(2), np.array([1.0, np.inf]))
    rows = np.array([3.0]), np.array([np.inf])
    here = np.zeros(2, np.int64)
    halves = [(here, here, np.array([0.25, 0.75])), (here[:1], here[:1] + 1, np.ones(1))]
    solver = solver_of(cost, columns, rows, halves, solver="simplex")
    solver.run()
    assert solver.getSolution().col_value == [1.0, 2.0]
    assert solver.getOptionValue("solver")[1] == "simplex"
