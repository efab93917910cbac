"""Runs of touched pages against sets of pages, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core import page_runs
from sentinel.core.page_runs import PAGE_DTYPE, RunIndex, Runs, cut, joined, pages_of_runs
from sentinel.core.trace import PAGE_RUN_DTYPE, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE
from tests.page_rows import by_page, runs_of_pages

_SEEN = st.sampled_from([SEEN_READ, SEEN_WRITE, SEEN_READ | SEEN_WRITE, SEEN_UNKNOWN])
_RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 3), _SEEN), max_size=20)
LAYERS = 4


def rows_of(runs: list[tuple[int, int, int, int]]) -> Any:
    return np.array(runs, PAGE_RUN_DTYPE)


def one_by_one(runs: list[tuple[int, int, int, int]]) -> dict[tuple[int, int], int]:
    """(layer, page) -> what was seen, told page by page: what any told is known."""
    found: dict[tuple[int, int], list[int]] = {}
    for page, npages, layer, seen in runs:
        for at in range(page, page + npages):
            found.setdefault((layer, at), []).append(seen)
    kinds = SEEN_READ | SEEN_WRITE
    return {
        key: int(np.bitwise_or.reduce(seen)) & kinds | int(np.bitwise_and.reduce(seen)) & SEEN_UNKNOWN
        for key, seen in sorted(found.items())
    }


def told(rows: Any) -> dict[tuple[int, int], int]:
    pairs = [
        ((int(row["layer"]), at), int(row["seen"]))
        for row in rows
        for at in range(row["page"], row["page"] + row["npages"])
    ]
    assert len(dict(pairs)) == len(pairs), "a page is told twice in a layer"
    return dict(pairs)


@given(_RUNS)
def test_runs_in_any_order_are_joined(runs: list[tuple[int, int, int, int]]) -> None:
    assert list(told(joined(rows_of(runs))).items()) == list(one_by_one(runs).items())


@given(_RUNS, st.integers(0, LAYERS - 1), st.integers(0, 50), st.integers(0, 20), st.sampled_from([1, 2, 1000]))
@settings(max_examples=300, deadline=None)
def test_the_index_finds_the_pages_of_a_layer(
    runs: list[tuple[int, int, int, int]], layer: int, first: int, count: int, most_stretches: int
) -> None:
    expected = {page: seen for (at, page), seen in one_by_one(runs).items() if at == layer}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_runs, "CHUNK_RUNS", 2)
        patched.setattr(page_runs, "_MOST_STRETCHES", most_stretches)
        index = RunIndex(rows_of(runs), LAYERS)
        assert index.touches.tolist() == [sum(at == i for at, _ in one_by_one(runs)) for i in range(LAYERS)]
        found = {}
        for part in index.chunks(layer):
            found.update(of_layer(part))
        assert found == expected
        within = of_layer(index.window(layer, first, first + count))
    assert within == {page: seen for page, seen in expected.items() if first <= page < first + count}


def of_layer(runs: Runs) -> dict[int, int]:
    assert (runs.page[1:] >= runs.stop[:-1]).all()
    return {
        page: int(runs.seen[of])
        for ofs, pages in by_page(runs, 3)
        for of, page in zip(ofs, pages.tolist(), strict=True)
    }


@given(_RUNS, st.sets(st.integers(0, 60)))
def test_a_cut_run_is_the_same_pages(runs: list[tuple[int, int, int, int]], places: set[int]) -> None:
    rows = joined(rows_of([(page, npages, 0, seen) for page, npages, _, seen in runs]))
    whole = Runs(*(rows[name].astype(np.int64) for name in Runs._fields))
    pieces, of = cut(whole, np.array(sorted(places), np.int64))
    assert of_layer(pieces) == of_layer(whole)
    assert (whole.seen[of] == pieces.seen).all()
    assert not any(page < place < stop for place in places for page, stop in zip(pieces.page, pieces.stop, strict=True))


@given(_RUNS)
def test_rows_one_a_page_say_the_same(runs: list[tuple[int, int, int, int]]) -> None:
    pages = pages_of_runs(rows_of(runs))
    assert pages.dtype == PAGE_DTYPE
    assert [(row["layer"], row["page"]) for row in pages] == list(one_by_one(runs))
    assert np.array_equal(pages_of_runs(runs_of_pages(pages)), pages)


def test_what_is_known_of_a_page() -> None:
    runs = rows_of([(10, 3, 0, SEEN_READ), (20, 1, 0, SEEN_READ | SEEN_WRITE), (10, 2, 1, SEEN_UNKNOWN)])
    read = [(0, 10, 1, 0), (0, 11, 1, 0), (0, 12, 1, 0)]
    assert pages_of_runs(runs).tolist() == [*read, (0, 20, 1, 1), (1, 10, -1, -1), (1, 11, -1, -1)]
    assert runs_of_pages(pages_of_runs(runs)).tolist() == runs.tolist()
    far = rows_of([(1 << 35, 2, 2**31 - 1, SEEN_READ), (5, 1, -1, SEEN_READ)])
    assert pages_of_runs(far)[["layer", "page"]].tolist() == [(-1, 5), (2**31 - 1, 1 << 35), (2**31 - 1, (1 << 35) + 1)]
    assert len(pages_of_runs(runs[:0])) == len(joined(runs[:0])) == 0


def test_neighbours_are_found_without_a_row_a_page() -> None:
    """A terabyte in two runs: the index is as small as they are."""
    terabyte = 1 << 28
    index = RunIndex(rows_of([(0, terabyte, 0, SEEN_READ), (0, terabyte, 1, SEEN_WRITE)]), 2)
    assert index.touches.tolist() == [terabyte, terabyte]
    assert index.window(1, 5, 8).page.tolist() == [5]
    assert index.window(1, 5, 8).npages.tolist() == [3]
