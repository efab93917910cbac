"""Pages of tensors of unlike hotness: a case worked out by hand, a slow oracle, and a control without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel import files
from sentinel.core.false_sharing import PLACED_DTYPE, FalseSharing, false_sharing
from sentinel.reports import build_report
from tests.builders import act, make_profile, param

PAGE = 4096


def placed(*rows: tuple[int, int, int, int]) -> NDArray[np.void]:
    return np.array(list(rows), PLACED_DTYPE)


def uses(*pairs: tuple[int, int]) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)


def test_known_pages_and_bytes() -> None:
    """Four layers.

    Page 2: a weight (used in 0 and 2) and its optimizer state (used in 3), both there all the time.
    Pages 3 and 4: a tensor over both, used in 1; on page 4 also 100 bytes that live through 1 and 2, used in 2.
    Page 9: two tensors of one hotness. Page 12: a tensor alone, unused.
    """
    rows = placed(
        (2 * PAGE, 300, 0, 4),
        (2 * PAGE + 320, 50, 0, 4),
        (3 * PAGE, PAGE + 7, 0, 4),
        (4 * PAGE + 64, 100, 1, 3),
        (9 * PAGE, 11, 0, 4),
        (9 * PAGE + 64, 13, 0, 4),
        (12 * PAGE, 17, 0, 4),
    )
    found = false_sharing(rows, uses((0, 0), (0, 2), (1, 3), (2, 1), (3, 2), (4, 1), (5, 1)), 4, "by hand")
    assert found == FalseSharing(
        pages=2,
        layer_pages=(1, 1, 2, 1),
        layer_cold_bytes=(50, 100, 50 + 7, 300),
        tensors=7,
        how="by hand",
    )
    assert found.nbytes == 2 * PAGE


@pytest.mark.parametrize(
    ("rows", "used"),
    [
        (placed(), uses()),
        (placed((0, 3 * PAGE, 0, 2), (3 * PAGE, PAGE, 0, 2)), uses((0, 0), (1, 1))),  # large ones, pages of their own
        (placed((64, 64, 0, 2), (128, 64, 0, 2)), uses()),  # nothing is used
        (placed((64, 64, 0, 2), (64, 64, 1, 1)), uses((0, 0), (0, 1), (1, 1))),  # nothing lives on unused
        (placed((64, 64, 1, 2), (128, 64, 0, 0)), uses((0, 1), (1, 0))),  # not alive together
    ],
)
def test_tensors_that_share_no_page_or_hotness_share_nothing_falsely(
    rows: NDArray[np.void], used: NDArray[np.int64]
) -> None:
    found = false_sharing(rows, used, 2)
    assert (found.pages, found.layer_pages, found.layer_cold_bytes) == (0, (0, 0), (0, 0))


def test_a_life_across_the_steps_end_counts_on_both_sides() -> None:
    found = false_sharing(placed((0, 10, 2, 4), (64, 20, 0, 0)), uses((1, 0), (1, 1), (1, 2)), 3)
    assert found.layer_cold_bytes == (10, 0, 10)


LAYERS = 5
_ROW = st.tuples(
    st.integers(0, 4 * PAGE), st.integers(1, 2 * PAGE), st.integers(0, LAYERS - 1), st.integers(0, LAYERS)
).map(lambda row: (row[0], row[1], row[2], row[2] + row[3]))


@given(st.lists(_ROW, max_size=9), st.data())
def test_it_agrees_with_a_slow_count(rows: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(0, max(len(rows) - 1, 0)), st.integers(0, LAYERS - 1))
    used = data.draw(st.lists(pairs, max_size=12)) if rows else []
    found = false_sharing(placed(*rows), uses(*used), LAYERS)
    # every page of every tensor, byte counts by intersection; interior pages of overlapping rows are left out there too
    edges = {i: {a // PAGE, (a + n - 1) // PAGE} for i, (a, n, _, _) in enumerate(rows)}
    pages: set[int] = set()
    for layer in range(LAYERS):
        falsely, cold = set(), 0
        for page in set().union(*edges.values()) if edges else set():
            on_it = [i for i in edges if page in edges[i]]
            if not any((i, layer) in used for i in on_it):
                continue
            for i in on_it:
                address, nbytes, start, stop = rows[i]
                through = start <= layer < stop or layer + LAYERS < stop
                if through and (i, layer) not in used:
                    falsely.add(page)
                    cold += min(address + nbytes, (page + 1) * PAGE) - max(address, page * PAGE)
        assert (found.layer_pages[layer], found.layer_cold_bytes[layer]) == (len(falsely), cold)
        pages |= falsely
    assert found.pages == len(pages)


def test_a_profile_keeps_it_and_every_form_of_a_report_shows_it(tmp_path: Path) -> None:
    sharing = FalseSharing(3, (0, 2, 1, 3), (0, 50, 70, 9), 11, "counted by hand")
    specs = [param("w", 4 * PAGE, [0]), act("x", PAGE, 1, 3, [2])]
    files.save(replace(make_profile(specs, 4), sharing=sharing), tmp_path / "p.profile")
    profile = files.load_profile(tmp_path / "p.profile")
    assert profile.sharing == sharing
    report = build_report(profile=profile)
    assert report.headline["false_sharing_bytes"] == 3 * PAGE
    for form, words in {
        "txt": ("12.00 KiB, 3 pages", "70 B", "counted by hand", "layer 3"),
        "html": ("12.00 KiB, 3 pages", "70 B", "counted by hand", "layer 3"),
        "json": ('"false_sharing_bytes": 12288', '"cold_bytes": [0, 50, 70, 9]'),
        "csv": ("false_sharing_bytes,12288",),
    }.items():
        report.write(tmp_path / f"r.{form}")
        text = (tmp_path / f"r.{form}").read_text()
        for word in words:
            assert word in text, (form, word)
    table = (tmp_path / "r-false_sharing.csv").read_text().splitlines()
    assert table[0] == "layer,name,pages,cold_bytes"
    assert table[3].endswith(",1,70")


def test_what_is_not_known_is_null() -> None:
    report = build_report(profile=make_profile([param("w", PAGE, [0])], 2))
    assert report.headline["false_sharing_bytes"] is None
    assert "false_sharing" not in report.frames()
    assert "falsely shared" in report.text()
