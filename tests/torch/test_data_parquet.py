"""Parquet: rows are dicts of columns, row groups are read whole; what cannot be read is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")

import pyarrow.parquet as pq  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import CapabilityError, FormatError, UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.room_here import cut_within  # noqa: E402
from sentinel.data.sample_arena import SampleArena, shape_within  # noqa: E402
from sentinel.data.served_samples import Served  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.source_reads import measured_costs  # noqa: E402
from sentinel.data.sources import parquet_rows  # noqa: E402
from sentinel.data.sources.parquet_rows import ParquetRows  # noqa: E402
from sentinel.data.sources.source import is_encoded  # noqa: E402
from sentinel.data.staged_samples import FromArena, Request  # noqa: E402
from sentinel.samples import Order, SourceCosts  # noqa: E402
from tests.data_files import content  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402
from tests.torch.loaders import sample_of  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)  # however busy the host is
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def table(first: int, count: int) -> Any:
    numbers = range(first, first + count)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "image": pa.array([content(i, 300 + i * 37 % 200) for i in numbers], pa.binary()),
            "text": pa.array([None if i % 7 == 3 else f"sample {i} ü" for i in numbers], pa.string()),
            "tokens": pa.array([np.arange(i % 5, dtype=np.uint16) + i for i in numbers], pa.list_(pa.uint16())),
            "label": pa.array([f"class {i % 3}" for i in numbers]).dictionary_encode(),
            "about": pa.array([{"width": i, "tags": ["a", "b"][: i % 3]} for i in numbers]),
        }
    )


def written(folder: Path, counts: list[int], group: int, **options: Any) -> list[str]:
    """Paths of files of so many rows, in row groups."""
    paths, first = [], 0
    for number, count in enumerate(counts):
        paths.append(str(folder / f"rows-{number}.parquet"))
        pq.write_table(table(first, count), paths[-1], row_group_size=group, **options)
        first += count
    return paths


def checked(sample: dict[str, Any]) -> int:
    """The number of a row of `table`, all of whose columns are right."""
    i = sample["number"]
    assert sample["image"] == content(i, 300 + i * 37 % 200)
    assert sample["text"] == (None if i % 7 == 3 else f"sample {i} ü")
    assert sample["tokens"].dtype == np.uint16
    assert sample["tokens"].tolist() == [i + k for k in range(i % 5)]
    assert sample["label"] == f"class {i % 3}"
    assert sample["about"] == {"width": i, "tags": ["a", "b"][: i % 3]}
    return i


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_rows_are_what_was_written(folder: Path, compression: str) -> None:
    paths = written(folder, [50, 23], 20, compression=compression)
    data = open_data(folder)
    layout = data.layout
    assert layout.encoded
    assert is_encoded(data.source)
    assert layout.chunk_samples.tolist() == [20, 20, 10, 20, 3]
    assert [checked(sample_of(data, i)) for i in range(73)] == list(range(73))
    again = open_data(paths)  # from the cache: the source has not seen the files
    assert checked(sample_of(again, 60)) == 60
    assert int(layout.chunk_nbytes.sum()) < sum(map(os.path.getsize, paths))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_delivers_torchs_order_and_reads_row_groups_once_in_a_window(folder: Path, workers: int) -> None:
    written(folder, [400, 400], 16)
    loader = sentinel.data.loader(folder, checked, batch_size=10, memory="50%", workers=workers, seed=3)
    for epoch in range(2):
        found = np.concatenate([batch.numpy() for batch in loader])
        assert np.array_equal(found, permutation(800, Order(seed=3), epoch))
    counts = loader.report().headline
    loader.close()
    assert counts["direct_reads"] == 0
    assert counts["reads_per_chunk"] < 2.5
    assert counts["samples"] == counts["hits"] + counts["source_reads"]


def test_the_report_says_that_mixing_is_told_among_row_groups(folder: Path) -> None:
    """Batches of 400 have samples of all 8 row groups, of 100 rows each: of neighbours by 64 there would be 14."""
    written(folder, [400, 400], 100)
    loader = sentinel.data.loader(folder, checked, batch_size=400, memory="100%")
    assert sum(len(batch) for batch in loader) == 800
    report = loader.report()
    assert report.mixing is not None
    assert report.mixing.chunks_per_batch == 8
    assert "mixes neighbours (64 samples, or all of a row group or compressed shard)" in report.text()
    loader.close()


@pytest.mark.parametrize("order", ["windowed", "redirect"])
def test_the_other_orders_deliver_each_row_once(folder: Path, order: str) -> None:
    written(folder, [300], 10)
    loader = sentinel.data.loader(folder, checked, batch_size=7, memory="30%", order=order)
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(300))
    loader.close()


def test_columns_of_one_size_need_only_the_footer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pa.table({"a": pa.array([*range(99), None], pa.int32()), "b": pa.array(np.arange(100) / 2)})
    pq.write_table(numbers, folder / "n.parquet", row_group_size=30)
    monkeypatch.setattr(ParquetRows, "_batches", None)
    data = open_data(folder)
    monkeypatch.undo()
    assert len(set(data.layout.sample_nbytes.tolist())) == 1
    assert sample_of(data, 5) == {"a": 5, "b": 2.5}
    assert sample_of(data, 99) == {"a": None, "b": 49.5}


@pytest.mark.parametrize("group", [1, 7, 64, 256])
def test_rows_of_one_size_take_what_is_said_of_them_the_first_one_too(folder: Path, group: int) -> None:
    values = range(600)
    columns = {
        "number": pa.array(values, pa.int64()),
        "label": pa.array([i % 10 for i in values], pa.uint8()),
        "even": pa.array([i % 2 == 0 for i in values]),
        "missing": pa.array([None if i % 64 == 0 else i for i in values], pa.float32()),
        "key": pa.array([content(i, 5) for i in values], pa.binary(5)),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=group)
    loader = sentinel.data.loader(folder / "rows.parquet", batch_size=50, memory="64MiB", collate_fn=list)
    found = sorted((sample for batch in loader for sample in batch), key=lambda sample: sample["number"])
    loader.close()
    assert found == pa.table(columns).to_pylist()


def test_what_cannot_be_read_of_columns_is_told_before_training(folder: Path) -> None:
    path = folder / "rows.parquet"
    words = pa.array(["a", "b"]).dictionary_encode()
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), words)
    pq.write_table(pa.table({"number": pa.array([1, 2]), "words": nested}), path)
    if pa.types.is_dictionary(pq.read_schema(path).field("words").type.value_type):
        with pytest.raises(FormatError, match="column 'words' has dictionaries within its values"):
            open_data(path)
        loader = sentinel.data.loader(sentinel.data.parquet(path, ["number"]), batch_size=2, memory="16MiB")
        assert next(iter(loader))["number"].sum() == 3
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], ["a", "a"]), path)
    with pytest.raises(FormatError, match="has several columns 'a'"):
        open_data(path)


def test_a_value_that_python_has_no_type_for_names_the_file(folder: Path) -> None:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"day": pa.array([2**30] * 4, pa.int32()).cast(pa.date32())}), path)
    loader = sentinel.data.loader(path, batch_size=2, memory="16MiB", collate_fn=list)
    with pytest.raises(FormatError, match="Python cannot hold") as error:
        list(loader)
    assert error.value.path == str(path)


def test_some_columns_are_read_alone(folder: Path) -> None:
    paths = written(folder, [40], 20)
    whole = open_data(paths)
    data = open_data(sentinel.data.parquet(paths, ["text", "number"]))
    assert sample_of(data, 30) == {"text": "sample 30 ü", "number": 30}
    assert list(sample_of(data, 30)) == ["text", "number"]
    assert int(data.layout.chunk_nbytes.sum()) < int(whole.layout.chunk_nbytes.sum()) // 2
    with pytest.raises(FormatError, match=r"no column 'texts'; give text"):
        open_data(sentinel.data.parquet(paths, ["texts"]))
    with pytest.raises(UsageError, match="no column is named"):
        sentinel.data.parquet(paths, [])


def test_row_groups_above_the_room_are_refused_with_the_memory_that_would_do(folder: Path) -> None:
    paths = written(folder, [200], 150)
    with pytest.raises(UsageError, match=r"150 samples of chunk 0 .* rows-0\.parquet.* give at least") as refused:
        sentinel.data.loader(paths, batch_size=4, memory="20%")
    enough = str(refused.value).partition("give at least ")[2].partition(",")[0].replace(" ", "")
    assert enough.endswith("KiB")
    loader = sentinel.data.loader(paths, checked, batch_size=4, memory=f"{float(enough[:-3]) + 0.1:.1f}KiB")
    assert sum(len(batch) for batch in loader) == 200
    loader.close()


def test_a_file_that_changed_is_refused_by_name(folder: Path) -> None:
    paths = written(folder, [40], 20)
    data = open_data(paths)
    files = SourceFiles(data.layout, data.root, data.source)
    files.chunk(0, np.array([0]))
    pq.write_table(table(40, 40), paths[0], row_group_size=20)
    for read in (lambda: files.chunk(1, np.array([20])), lambda: open_data(paths)):
        with pytest.raises(FormatError, match="changed since it was indexed") as error:
            read()
        assert error.value.path == paths[0]


@pytest.mark.parametrize("bad", ["cut", "noise", "empty", "no rows", "other columns", "damaged page"])
def test_what_is_no_sound_file_is_refused_by_name(folder: Path, bad: str) -> None:
    paths = written(folder, [40, 40], 20, use_dictionary=False, compression="none")
    path = Path(paths[1])
    if bad == "cut":
        os.truncate(path, 500)
    elif bad == "noise":
        path.write_bytes(content(1, 5000))
    elif bad == "empty":
        path.write_bytes(b"")
    elif bad == "no rows":
        pq.write_table(table(0, 5).slice(0, 0), path)
    elif bad == "other columns":
        pq.write_table(table(0, 5).rename_columns(["number", "image", "text", "tokens", "label", "more"]), path)
    else:
        data = bytearray(path.read_bytes())
        data[4:400] = content(2, 396)
        path.write_bytes(data)
    with pytest.raises(
        FormatError, match=r"footer|no rows|other columns than the first file, see 'more'|decoded"
    ) as error:
        open_data(paths)
    assert error.value.path == str(path)


def test_damaged_bytes_of_a_row_name_the_file(folder: Path) -> None:
    paths = written(folder, [4], 4)
    data = open_data(paths)
    row = bytearray(SourceFiles(data.layout, data.root, data.source).sample(2).tobytes())
    for damage in (row[: len(row) // 2], b"", bytes(len(row))):
        with pytest.raises(FormatError, match="a row is damaged") as error:
            data.source.decode(bytes(damage), paths[0])
        assert error.value.path == paths[0]


def test_plan_counts_whole_row_groups(folder: Path) -> None:
    written(folder, [800], 16)
    told = sentinel.data.forecast(folder, ["20%"], costs=SourceCosts(1e6, 1e9))
    alone, exact = told.rows[:2]
    assert alone.later_epochs.source_bytes == int(told.layout.alone_nbytes.sum())
    assert exact.later_epochs.reads_per_chunk < 4
    assert exact.speedup > 4
    assert measured_costs(open_data(folder)).measured


def test_without_pyarrow_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, [4], 4)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"in a checkout: pip install '\.\[data\]'"):
        open_data(folder)
    assert parquet_rows.ParquetRows().kind == "parquet"


def test_a_room_holds_what_chunks_take(folder: Path) -> None:
    layout = open_data(written(folder, [64], 16)).layout
    cut, unit = cut_within(layout, shape_within(layout.nbytes, layout.sample_nbytes), 64)
    assert (cut, unit) == (layout, 0)


def test_row_groups_of_a_batch_that_a_lost_worker_had_are_decoded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(written(folder, [40], 20))
    layout = data.layout
    calls: list[int] = []
    arena = SampleArena(shape_within(1 << 20, layout.sample_nbytes))
    real = ParquetRows.unpack

    def counted(self: ParquetRows, file: Any, nbytes: int, number: int) -> Any:
        calls.append(number)
        return real(self, file, nbytes, number)

    monkeypatch.setattr(ParquetRows, "unpack", counted)
    source = FromArena(SourceFiles(layout, data.root, data.source), arena, data.source)
    nothing, samples = np.zeros(6, np.bool_), np.array([39, 0, 21, 2, 3, 20])
    arena.taken[:6] = 1
    served = Served(samples=6)
    assert [checked(row) for row in source.fetch(Request(0, samples, nothing, nothing), served)] == samples.tolist()
    assert (served.again, served.direct_reads, sorted(calls)) == (6, 6, [0, 1])
    assert served.direct_bytes == int(layout.chunk_nbytes.sum())
    assert served.unstaged_bytes == 3 * served.direct_bytes


DAMAGED = """
import os, resource, sys
from pathlib import Path
from sentinel.core.errors import SentinelError
from sentinel.data.data_index import open_data
from sentinel.data.source_files import SourceFiles
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
good = path.read_bytes()
begin = {"npy": 6, "parquet": len(good) - 8 - int.from_bytes(good[-8:-4], "little")}[path.suffix[1:]]
refused = 0
for at in range(begin, {"npy": 128, "parquet": len(good) - 8}[path.suffix[1:]]):
    for value in {127, good[at] ^ 1 << at % 8} - {good[at]}:
        path.write_bytes(good[:at] + bytes([value]) + good[at + 1 :])
        os.utime(path, ns=(0, at * 256 + value))
        for index in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.safetensors"):
            index.unlink()
        try:
            data = open_data(str(path))
            data.source.decode(SourceFiles(data.layout, data.root, data.source).sample(0).data, str(path))
        except SentinelError as error:
            assert str(path) in str(error), (at, value, str(error))
            refused += 1
assert refused > 50, refused
"""


@pytest.mark.parametrize("kind", ["strings", "numbers", "npy"])
def test_a_damaged_header_is_an_error_with_the_files_name(folder: Path, kind: str) -> None:
    """In a process of its own: pyarrow would end it."""
    path = folder / f"rows.{'npy' if kind == 'npy' else 'parquet'}"
    if kind == "npy":
        np.save(path, np.zeros((20, 50), np.int32))
    else:
        second = [1.5] * 40 if kind == "numbers" else ["x" * number for number in range(40)]
        pq.write_table(pa.table({"a": range(40), "b": second}), path, row_group_size=20)
    told = subprocess.run([sys.executable, "-c", DAMAGED, path], capture_output=True, text=True, timeout=LONGEST_S)
    assert told.returncode == 0, told.stderr[-2000:]
