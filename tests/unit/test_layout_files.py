"""A layout on disk: as it was, or refused; no name in it leads out of the folder of the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentinel.core.errors import FormatError
from sentinel.files import digest, load, load_machine, save
from sentinel.samples import Layout

LAYOUT = Layout(
    format="tar",
    files=("a.tar", "below/b.tar"),
    file_nbytes=np.array([10_240, 20_480]),
    file_mtime_ns=np.array([1, -5]),
    chunk_file=np.array([0, 1], np.int32),
    chunk_offset=np.array([0, 512]),
    chunk_nbytes=np.array([5_000, 9_000]),
    chunk_samples=np.array([2, 1], np.int32),
    sample_offset=np.array([0, 2_000, 0]),
    sample_nbytes=np.array([1_000, 3_000, 9_000]),
)


def test_a_layout_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(LAYOUT, tmp_path / "layout")
    found = load(tmp_path / "layout")
    assert isinstance(found, Layout)
    assert (found.digest, digest(found)) == (LAYOUT.digest, digest(LAYOUT))
    assert found.file_mtime_ns.tolist() == [1, -5]
    with pytest.raises(FormatError, match="holds a layout, not a machine"):
        load_machine(tmp_path / "layout")


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.tar", "below/../../a.tar", "", "a\0b"])
def test_a_name_that_leads_out_of_the_data_is_refused(tmp_path: Path, name: str) -> None:
    save(replace(LAYOUT, files=("a.tar", name)), tmp_path / "layout")
    with pytest.raises(FormatError, match="leads out of the folder"):
        load(tmp_path / "layout")


def test_sizes_beyond_any_file_are_refused(tmp_path: Path) -> None:
    save(replace(LAYOUT, file_nbytes=np.array([1 << 62, 1 << 62])), tmp_path / "layout")
    with pytest.raises(FormatError, match="larger than any file"):
        load(tmp_path / "layout")


def test_a_byte_changed_anywhere_in_the_columns_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "layout"
    save(LAYOUT, path)
    raw = path.read_bytes()
    for at in range(8 + int.from_bytes(raw[:8], "little"), len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(FormatError):
            load(path)
