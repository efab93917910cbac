"""MDS: what the library that made the format wrote is read, raw and compressed; what cannot be read is refused by name.

tests/golden/mds was written by mosaicml-streaming 0.13.0, see write_mds.py there; all else by tests/data_files.py.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import sys
from decimal import Decimal
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import CapabilityError, FormatError, UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.sources.mds_shards import MdsShards, PackedMdsShards  # noqa: E402
from sentinel.samples import Order  # noqa: E402
from tests.data_files import content, mds  # noqa: E402
from tests.torch.loaders import sample_of  # noqa: E402

COLUMNS = {"image": ("bytes", None), "number": ("int", 8), "text": ("str", None)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def encoded(i: int) -> dict[str, bytes]:
    return {"image": content(i, 200 + i * 37 % 100), "number": np.int64(i).tobytes(), "text": f"ü{i}".encode()}


def checked(sample: dict[str, Any]) -> int:
    i = sample["number"]
    assert sample == {"image": content(i, 200 + i * 37 % 100), "number": i, "text": f"ü{i}"}
    return int(i)


def written(folder: Path, counts: list[int], zstd: bool = False) -> None:
    ends = np.cumsum([0, *counts]).tolist()
    mds(folder, COLUMNS, [[encoded(i) for i in range(*both)] for both in pairwise(ends)], zstd)


@pytest.mark.parametrize("packed", [False, True])
def test_a_loader_reads_shards_in_torchs_order(folder: Path, packed: bool) -> None:
    if packed:
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    written(folder, [20] * 30, packed)
    data = open_data(folder)
    assert data.layout.encoded == packed
    assert isinstance(data.source, PackedMdsShards) == packed
    assert isinstance(data.source, MdsShards)
    loader = sentinel.data.loader(folder, checked, batch_size=8, memory="50%", workers=1, unit=20)
    for epoch in range(2):
        found = np.concatenate([batch.numpy() for batch in loader])
        assert np.array_equal(found, permutation(600, Order(), epoch))
    assert loader.report().headline["reads_per_chunk"] < 2.5
    loader.close()


@pytest.mark.parametrize("name", ["raw", "zstd", "gz"])
def test_files_of_the_library_itself_give_what_was_written(folder: Path, name: str) -> None:
    if name == "zstd":
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    data = open_data(Path(__file__).parents[1] / "golden" / "mds" / name)
    assert data.layout.n_samples == 12
    assert len(data.layout.files) > 1
    for i in range(12):
        sample = sample_of(data, i)
        shaped = np.arange(6, dtype=np.float32).reshape(2, 3) + i
        assert sample["bytes"] == bytes([i]) * i
        assert sample["str"] == f"sample {i} ü"
        assert (sample["int"], type(sample["int"])) == (-i, int)
        for dtype in ("uint8", "uint16", "int32", "int64", "float16", "float32", "float64"):
            assert sample[dtype] == i
            assert sample[dtype].dtype == dtype
        assert np.array_equal(sample["array"], np.arange(i + 1, dtype=np.uint16).reshape(1, -1))
        assert np.array_equal(sample["array_of_floats"], shaped)
        assert np.array_equal(sample["array_of_form"], shaped)
        assert sample["json"] == {"number": i, "list": [1, None]}
        assert (sample["str_int"], sample["str_float"]) == (10**20 + i, i / 3)
        assert sample["str_decimal"] == Decimal(i) / 8
        for kind in ("pil", "png"):
            picture = sample[kind]
            assert isinstance(picture, bytes) or picture.getpixel((1, 0)) == (i, 2 * i, 3)


@pytest.mark.parametrize("encoding", ["pkl", "tensor"])
def test_columns_that_are_not_read_are_refused_before_any_sample(folder: Path, encoding: str) -> None:
    mds(folder, {"x": (encoding, None)}, [[{"x": b"cos\nsystem\n(S'exit'\ntR."}]])
    with pytest.raises(FormatError, match=r"column 'x' is (pickled, and reading|encoded as 'tensor', which)") as error:
        open_data(folder)
    assert error.value.path == str(folder / "index.json")


def test_shards_without_their_index_are_refused(folder: Path) -> None:
    written(folder, [3])
    (folder / "index.json").unlink()
    (shard,) = folder.iterdir()
    for source in (folder, shard):
        with pytest.raises(UsageError, match=r"MDS shards do not tell their columns; .*index\.json"):
            open_data(source)
    shard.rename(folder / "shard.00000.mds.zstd")
    with pytest.raises(UsageError, match="MDS shards do not tell their columns"):
        open_data(folder / "shard.00000.mds.zstd")


@pytest.mark.parametrize("bad", ["cut", "gone", "numbers", "json", "list", "no shards", "unlike", "samples"])
def test_what_is_not_sound_is_refused_by_name(folder: Path, bad: str) -> None:
    written(folder, [5, 5])
    shard, index = folder / "shard.00001.mds", folder / "index.json"
    told = json.loads(index.read_text())
    if bad == "cut":
        os.truncate(shard, 200)
    elif bad == "gone":
        shard.unlink()
    elif bad == "numbers":
        data = bytearray(shard.read_bytes())
        data[8:12] = b"\xff\xff\xff\x7f"
        shard.write_bytes(data)
    elif bad == "json":
        index.write_text("{")
    elif bad == "list":
        index.write_text("[]")
    elif bad == "no shards":
        index.write_text(json.dumps({**told, "shards": []}))
    elif bad == "unlike":
        told["shards"][1]["column_encodings"][0] = "str"
        index.write_text(json.dumps(told))
    else:
        told["shards"][1]["samples"] = 6
        index.write_text(json.dumps(told))
    with pytest.raises(FormatError) as error:
        open_data(folder)
    assert error.value.path in (str(shard), str(index))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("named", ["data", "./data", "data/", "../{}/data"])
def test_a_folder_may_be_named_from_where_one_is(
    folder: Path, named: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed:
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    written(folder, [5, 5], packed)
    monkeypatch.chdir(folder.parent)
    source = named.format(folder.parent.name)
    loader = sentinel.data.loader(source, checked, batch_size=5, memory="4MiB", collate_fn=list)
    assert sorted(number for batch in loader for number in batch) == list(range(10))


def test_a_damaged_sample_names_the_shard(folder: Path) -> None:
    written(folder, [3])
    data = open_data(folder)
    sample = SourceFiles(data.layout, data.root, data.source).sample(1).tobytes()
    for damaged in (sample[:5], b"", b"\xff" * len(sample)):
        with pytest.raises(FormatError, match="a damaged sample") as error:
            data.source.decode(damaged, "a.mds")
        assert error.value.path == "a.mds"


def test_a_shard_that_was_packed_anew_is_refused_by_name(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    written(folder, [5, 5], zstd=True)
    data = open_data(folder)
    shard = folder / "shard.00001.mds.zstd"
    shard.write_bytes(gzip.compress(shard.read_bytes()))
    with pytest.raises(FormatError, match="changed since it was indexed"):
        SourceFiles(data.layout, data.root, data.source).sample(7)
    with pytest.raises(FormatError, match=r"cannot be unpacked|cut short") as error:
        sentinel.data.index(folder)
    assert error.value.path == str(shard)


def test_packed_shards_without_pyarrow_say_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    written(folder, [5], zstd=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"in a checkout: pip install '\.\[data\]'"):
        open_data(folder)


@pytest.mark.parametrize("form", ["gz", "bz2"])
def test_a_shard_is_not_unpacked_beyond_what_its_index_says(folder: Path, form: str) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress}[form]
    written(folder, [5])
    shard, index = folder / "shard.00000.mds", folder / "index.json"
    raw, told = shard.read_bytes(), json.loads(index.read_text())
    shard.unlink()
    packed = folder / f"shard.00000.mds.{form}"
    told["shards"][0] |= {"compression": form, "zip_data": {"basename": packed.name, "bytes": 1, "hashes": {}}}
    index.write_text(json.dumps(told))
    packed.write_bytes(pack(raw[:100]) + pack(raw[100:]))  # of two streams
    assert [checked(sample_of(open_data(folder), i)) for i in range(5)] == list(range(5))
    for damaged, said in (
        (pack(bytes(50 << 20)), "holds more than the"),
        (pack(raw)[:-9], "it was cut short"),
        (pack(raw)[:40] + bytes(9) + pack(raw)[49:], "cannot be unpacked"),
        (raw, "cannot be unpacked"),
    ):
        packed.write_bytes(damaged)
        with pytest.raises(FormatError, match=said) as error:
            sentinel.data.index(folder)
        assert error.value.path == str(packed)
    told["shards"][0]["raw_data"]["bytes"] = 1 << 40
    index.write_text(json.dumps(told))
    with pytest.raises(FormatError, match=r"samples in 1099511627776 bytes"):
        sentinel.data.index(folder)


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_a_column_of_pictures_has_pictures_of_its_form_only(folder: Path, encoding: str) -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    mds(folder, {"x": (encoding, None)}, [[{"x": eps}]])
    if find_spec("PIL") is None:
        assert sample_of(open_data(folder), 0) == {"x": eps}
        return
    with pytest.raises(FormatError, match="damaged sample"):
        sample_of(open_data(folder), 0)


def test_a_loader_names_the_sample_that_is_damaged(folder: Path) -> None:
    mds(folder, {"n": ("str_int", None)}, [[{"n": b"1"}, {"n": b"x"}]])
    loader = sentinel.data.loader(folder, batch_size=1, memory="1MiB")
    with pytest.raises(FormatError, match="mds sample 1: has a damaged sample") as error:
        list(loader)
    assert error.value.path == str(folder / "shard.00000.mds")
    loader.close()
