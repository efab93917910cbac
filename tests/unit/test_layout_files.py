"""A layout on disk: as it was, or refused; no name in it leads out of the folder of the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from sentinel.core.errors import FormatError, UsageError
from sentinel.files import containers, digest, documents, load, load_machine, save
from sentinel.files.digests import canonical, checksum, columns_of
from sentinel.files.formats import BY_NAME
from sentinel.samples import Layout
from tests.builders import make_machine

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


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.tar", "below/../../a.tar", ""])
def test_a_name_that_leads_out_of_the_data_is_refused(tmp_path: Path, name: str) -> None:
    save(replace(LAYOUT, files=("a.tar", name)), tmp_path / "layout")
    with pytest.raises(FormatError, match="leads out of the folder"):
        load(tmp_path / "layout")


@pytest.mark.parametrize("name", ["a\0b", "\udc80"])
def test_a_name_that_no_file_can_hold_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be saved"):
        save(replace(LAYOUT, files=("a.tar", name)), tmp_path / "layout")
    assert not list(tmp_path.iterdir())


def of_files(count: int) -> Layout:
    """So many files of a sample each."""
    whole, offsets = np.arange(count), np.zeros(count, np.int64)
    return Layout(
        format="folder",
        files=tuple(f"a folder of pictures/größer {number:08d}.png" for number in range(count)),
        file_nbytes=whole + 1,
        file_mtime_ns=whole,
        chunk_file=whole.astype(np.int32),
        chunk_offset=offsets,
        chunk_nbytes=whole + 1,
        chunk_samples=np.ones(count, np.int32),
        sample_offset=offsets,
        sample_nbytes=whole + 1,
    )


def test_names_take_nothing_of_what_an_index_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_INDEX_BYTES", 10_000)
    layout = of_files(1_000)
    save(layout, tmp_path / "layout")
    found = load(tmp_path / "layout")
    assert isinstance(found, Layout)
    assert (found.files, found.digest) == (layout.files, layout.digest)


def test_what_could_never_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_INDEX_BYTES", 10_000)
    monkeypatch.setattr(documents, "MAX_BYTES", 100)
    for noun, what in ((replace(LAYOUT, description="x" * 10_000), "layout.* its index"), (make_machine(), "its file")):
        with pytest.raises(UsageError, match=f"this .*{what} would have .*; save one of fewer"):
            save(noun, tmp_path / "file")
    monkeypatch.setattr(containers, "MAX_BYTES", 1_000)
    with pytest.raises(UsageError, match="its file would have"):
        save(LAYOUT, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_layout_of_version_1_is_read(tmp_path: Path) -> None:
    """Written by the program as it was when the names of files stood in the header."""
    old = Path(__file__).parent / "files_of_before" / "layout-1.safetensors"
    found = load(old)
    assert isinstance(found, Layout)
    assert (found.files, found.digest) == (LAYOUT.files, LAYOUT.digest)
    save(found, tmp_path / "now")
    assert digest(load(tmp_path / "now")) == digest(LAYOUT)
    damaged = old.read_bytes().replace(b"below/b.tar", b"below/c.tar")
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(FormatError, match="damaged"):
        load(tmp_path / "damaged")


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (b"a.tar\0\xff", "not UTF-8"),
        (b"a.tar", "file_nbytes has 2 rows, not 1"),
        (b"a\0b\0c", "file_nbytes has 2 rows, not 3"),
        (bytes(1000), "1001 texts, and no column has as many rows"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, names: bytes, rule: str) -> None:
    save(LAYOUT, tmp_path / "layout")
    raw = (tmp_path / "layout").read_bytes()
    told = json.loads(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["sentinel"])
    form = BY_NAME["sentinel-layout"]
    columns = {**columns_of(LAYOUT, form), "files": np.frombuffer(names, np.uint8)}
    told["checksum"] = checksum(form, canonical(told["header"]), columns)
    (tmp_path / "layout").write_bytes(safetensors.numpy.save(columns, {"sentinel": canonical(told)}))
    with pytest.raises(FormatError, match=rule):
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
