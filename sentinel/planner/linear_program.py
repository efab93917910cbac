"""Linear programs as the solver takes them."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

Entries = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]
"""(row, column, value) of a matrix, in pieces."""

Limits = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(low, high), infinite where there is none."""


def solver_of(
    cost: NDArray[np.float64], columns: Limits, rows: Limits, entries: Entries, **options: str | float
) -> highspy.Highs:
    """A solver, of one thread, that has been told all of a program to be made least, and is yet to run."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(rows[0])
    lp.col_cost_, (lp.col_lower_, lp.col_upper_), (lp.row_lower_, lp.row_upper_) = cost, columns, rows
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = colwise(entries, len(cost), len(rows[0]))
    solver = highspy.Highs()
    for option, setting in {"output_flag": False, "threads": 1, **options}.items():
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    return solver


def colwise(
    entries: Entries, n_columns: int, n_rows: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """(starts, row index, value) by column; entries of one place are added up."""
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    key, place = np.unique(column * n_rows + row, return_inverse=True)
    starts = np.searchsorted(key // n_rows, np.arange(n_columns + 1)).astype(np.int32)
    return starts, (key % n_rows).astype(np.int32), np.bincount(place, value, len(key)).astype(np.float64)
