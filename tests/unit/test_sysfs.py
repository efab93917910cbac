"""Small files of the kernel, and trials of what this kernel can do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.system import features
from sentinel.system.probes import Missing
from sentinel.system.sysfs import as_list, entries, field, numbers, text


def test_what_is_not_there_reads_as_empty(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("7\n")
    (tmp_path / "a").write_bytes(b"\xff")
    assert text(tmp_path / "b") == "7\n"
    assert text(tmp_path / "a") == text(tmp_path / "none") == text(tmp_path) == ""
    assert entries(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert entries(tmp_path / "none") == []


def test_a_field_is_what_follows_its_name(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmDataSize: 9\nVmData:\t 23 kB \nmodel name\t: A: B\nVmData: 7\n")
    found = {name: field(tmp_path / "status", name) for name in ("VmData", "model name", "Data")}
    assert found == {"VmData": "23 kB", "model name": "A: B", "Data": ""}
    assert field(tmp_path / "none", "VmData") == ""


@given(st.sets(st.integers(0, 200)))
def test_lists_of_numbers_are_read_as_they_are_written(found: set[int]) -> None:
    assert numbers(as_list(found)) == sorted(found)


def test_lists_are_written_as_the_kernel_does() -> None:
    assert as_list((8, 0, 1, 2, 3)) == "0-3,8"
    assert numbers(" 0-2,x,7-,5\n") == [0, 1, 2, 5]


@pytest.mark.parametrize("trial", ["pagemap_scan", "soft_dirty", "advice", "weighted_interleave"])
def test_a_trial_says_what_it_saw_or_what_is_missing(trial: str) -> None:
    try:
        said = getattr(features, trial)()
    except (Missing, OSError) as missing:
        said = str(missing)
    assert len(said) > 10


def test_advice_that_no_kernel_knows_is_refused() -> None:
    assert features._advised(features.ADVICE["MADV_HUGEPAGE"], shared=False) in (0, 22)  # 22: built without it
    assert features._advised(9999, shared=False) == 22
