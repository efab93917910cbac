"""Rows of page touches: sorted, one a layer and page, joined where a layer came twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentinel.profiler.pages.binding import RUN_DTYPE
from sentinel.profiler.pages.engine import rows_of_runs
from sentinel.profiler.pages.protocol import page_rows

_TOUCHES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(-1, 1)))


@given(_TOUCHES)
def test_rows_are_a_sorted_union(touches: list[tuple[int, int, int]]) -> None:
    slow: dict[tuple[int, int], int] = {}
    for layer, page, kind in touches:
        slow[layer, page] = max(slow.get((layer, page), -1), kind)
    columns = np.array(touches, np.int64).reshape(-1, 3)
    rows = page_rows(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 2])
    assert [(row["layer"], row["page"], row["reads"]) for row in rows] == [(*key, slow[key]) for key in sorted(slow)]
    assert (rows["reads"] == rows["writes"]).all()


def test_runs_become_pages() -> None:
    runs = np.array([(10, 3, 0, 1), (20, 1, 0, 3), (10, 2, 1, 4)], RUN_DTYPE)
    rows = rows_of_runs(runs)
    read = [(0, 10, 1, 0), (0, 11, 1, 0), (0, 12, 1, 0)]
    assert rows.tolist() == [*read, (0, 20, 1, 1), (1, 10, -1, -1), (1, 11, -1, -1)]
    assert len(rows_of_runs(runs[:0])) == 0
