"""Page touches one a page and layer, of which there may be many more than runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.page_runs import Runs
from sentinel.core.trace import PAGE_RUN_DTYPE, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE


def runs_of_pages(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of PAGE_DTYPE, one a page and layer, as rows of PAGE_RUN_DTYPE: neighbours alike in one."""
    rows = rows[np.lexsort((rows["page"], rows["layer"]))]
    seen = (rows["reads"] > 0) * SEEN_READ + (rows["writes"] > 0) * SEEN_WRITE + (rows["writes"] < 0) * SEEN_UNKNOWN
    same = (np.diff(rows["page"]) == 1) & (np.diff(rows["layer"]) == 0) & (np.diff(seen) == 0)
    starts = np.flatnonzero(np.concatenate([[True], ~same])) if len(rows) else np.zeros(0, np.int64)
    found = np.zeros(len(starts), PAGE_RUN_DTYPE)
    found["layer"], found["page"], found["seen"] = rows["layer"][starts], rows["page"][starts], seen[starts]
    found["npages"] = np.diff(np.append(starts, len(rows)))
    return found


def by_page(runs: Runs, most_pages: int = 1 << 20) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(n,) which run, and (n,) which page, one row a page, at most so many at a time."""
    ends = runs.npages.cumsum()
    begins = ends - runs.npages
    for low in range(0, int(ends[-1]) if len(ends) else 0, most_pages):
        place = np.arange(low, min(low + most_pages, int(ends[-1])))
        of = np.searchsorted(ends, place, "right")
        yield of, runs.page[of] + place - begins[of]
