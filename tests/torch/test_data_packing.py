"""`sentinel data pack`: tar shards in the order of a seed, all of them or none, and nothing is written over."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.cli import main  # noqa: E402
from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data import shard_packing  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.shard_packing import members_of, pack  # noqa: E402
from sentinel.samples import Order  # noqa: E402
from tests import warm  # noqa: E402
from tests.data_files import content, number_of, rows, shards  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def names(pattern: str) -> list[str]:
    """Of the members of all shards, by tarfile."""
    found: list[str] = []
    for path in sentinel.data.data_index.files_named(pattern):
        with tarfile.open(path) as tar:
            found += tar.getnames()
    return found


def photos(folder: Path, count: int) -> None:
    for i in range(count):
        (folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (folder / "ab"[i % 2] / f"{i:03d}.jpg").write_bytes(content(i, 500))
        (folder / "ab"[i % 2] / f"{i:03d}.cls").write_bytes(b"%d" % (i % 2))


def test_a_folder_becomes_samples_of_files_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos", 40)
    to = tmp_path / "shards"
    command = ["data", "pack", str(tmp_path / "photos"), "--to", str(to), "--seed", "5", "--shard", "16KiB", "--json"]
    assert main(command) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["samples"], done["shards"]) == (40, len(list(to.iterdir())))
    assert done["shards"] > 2
    assert done["nbytes"] == sum(path.stat().st_size for path in to.iterdir())
    keys = sorted(f"{'ab'[i % 2]}/{i:03d}" for i in range(40))
    order = [keys[i] for i in permutation(40, Order(seed=5), 0).tolist()]
    assert [name for name in names(done["pattern"]) if name.endswith("jpg")] == [f"{key}.jpg" for key in order]
    loader = sentinel.data.loader(done["pattern"], batch_size=8, memory="100%", unit=4, collate_fn=list)
    samples = {sample["__key__"]: sample for batch in loader for sample in batch}
    loader.close()
    assert sorted(samples) == keys
    assert samples["b/007"] == {"__key__": "b/007", "jpg": content(7, 500), "cls": b"1"}
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    photos(tmp_path / "photos", 10)
    made = [pack(tmp_path / "photos", tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, second, other = (Path(done.pattern).read_bytes() for done in made)
    assert first == second != other


def test_shards_are_packed_anew_and_keep_members_and_keys(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    paths = shards(tmp_path, [30]) + shards(tmp_path / "more", [30])  # of the same keys
    done = pack(paths, tmp_path / "to", memory="100%")
    loader = sentinel.data.loader(done.pattern, batch_size=10, memory="100%", collate_fn=list)
    found = [sample for batch in loader for sample in batch]
    loader.close()
    assert sorted(int(sample["cls"]) for sample in found) == sorted([*range(30), *range(30)])
    assert len({sample["__key__"] for sample in found}) == 60
    assert number_of({**found[0], "__key__": found[0]["__key__"][:6]}) >= 0


def test_rows_become_arrays(tmp_path: Path) -> None:
    path = rows(tmp_path, 20)
    done = pack(path, tmp_path / "to", memory="100%")
    array = np.load(path)
    with tarfile.open(done.pattern) as tar:
        for place, row in enumerate(permutation(20, Order(), 0).tolist()):
            file = tar.extractfile(f"{place:08d}.npy")
            assert file is not None
            assert np.array_equal(np.load(io.BytesIO(file.read())), array[row])


def test_columns_become_members() -> None:
    sample = {"Image": b"x", "text": "ü", "n": 3, "f": np.float32(0.5), "a": np.arange(2), "d": {"k": [1]}, "o": None}
    key, members = members_of(sample, 7)
    assert key == "00000007"
    assert members.pop("a.npy")[:6] == b"\x93NUMPY"
    expected = {"image": b"x", "text": "ü".encode(), "n": b"3", "f": b"0.5", "d.json": b'{"k": [1]}', "o.json": b"null"}
    assert members == expected
    with pytest.raises(UsageError, match="has a set, which makes no member"):
        members_of({"x": {1}}, 0)
    with pytest.raises(UsageError, match="no member may be"):
        members_of({"a/b": b""}, 0)


@pytest.mark.parametrize(("name", "said"), [("README", "has no suffix"), ("c.jpg", "give samples of the same files")])
def test_files_that_make_no_samples_are_refused_by_name(tmp_path: Path, name: str, said: str) -> None:
    photos(tmp_path / "photos", 4)
    (tmp_path / "photos" / name).write_bytes(b"x")
    with pytest.raises(FormatError, match=said):
        pack(tmp_path / "photos", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_numbered_files_are_samples_and_not_members_of_one(tmp_path: Path) -> None:
    folder = tmp_path / "Frames"
    folder.mkdir()
    for name in ("A.0001.png", "A.0002.png"):
        (folder / name).write_bytes(b"1")
    with pytest.raises(
        FormatError, match=r"A\.0001\.png: name: and A\.0002\.png would be one sample, A: all before the"
    ):
        pack(folder, tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_several_members_of_one_suffix_are_packed(tmp_path: Path) -> None:
    for name in ("1.left.png", "1.right.png", "2.left.png", "2.right.png"):
        (tmp_path / "stereo").mkdir(exist_ok=True)
        (tmp_path / "stereo" / name).write_bytes(name.encode())
    packed = pack(tmp_path / "stereo", tmp_path / "shards")
    assert packed.samples == 2
    assert sorted(names(packed.pattern)) == ["1.left.png", "1.right.png", "2.left.png", "2.right.png"]


def test_bad_places_and_sizes_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos", 4)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="there is no folder"):
        pack(tmp_path / "photos", tmp_path / "no" / "to")
    with pytest.raises(UsageError, match="hold nothing"):
        pack(tmp_path / "photos", tmp_path / "to", shard=0)
    with pytest.raises(UsageError, match="is there already"):
        pack(tmp_path / "photos", tmp_path / "photos")
    monkeypatch.setattr(shard_packing.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    with pytest.raises(UsageError, match="name a folder of another disk"):
        pack(tmp_path / "photos", tmp_path / "to")
    assert sorted(tmp_path.iterdir()) == there


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    photos(tmp_path / "photos", 40)
    program = (  # which is at its fifth file until it is interrupted
        "import itertools, time, sentinel.data.shard_packing as p; real, files = p._content, itertools.count(1)\n"
        "p._content = lambda path: (next(files) == 5 and time.sleep(600), real(path))[1]\n"
        "from sentinel.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "data", "pack", str(tmp_path / "photos"), "--to", str(tmp_path / "to")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        began = time.monotonic()
        while not list(tmp_path.glob(".to-*/shard-*")):
            assert time.monotonic() - began < LONGEST_S
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
    assert not (tmp_path / "to").exists()
    assert not list(tmp_path.glob(".to-*"))


def test_a_disk_that_becomes_full_leaves_nothing(tmp_path: Path) -> None:
    """Also where closing the shard writes what is left of it, and fails once more."""
    photos(tmp_path / "photos", 400)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "from sentinel.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "data", "pack", str(tmp_path / "photos"), "--to", str(tmp_path / "to")]
    done = warm.run(command)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_columns_that_make_no_members_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    import pyarrow.parquet as pq

    for number, (columns, said) in enumerate(
        (
            ({"a": [b"1"], "A": [b"2"]}, "makes a second member 'a'"),
            ({"__key__": ["a.b"], "x": [b"1"]}, "the column 'x' of the sample 'a.b' makes no name of a member"),
            ({"__key__": ["../a"], "x": [b"1"]}, "makes no name of a member"),
            ({"__key__": ["a"]}, "the sample 'a' has no column but its key"),
            ({"x": ["1", None]}, r"has (a|no) member 'x(\.json)?', unlike the first sample"),
        )
    ):
        source = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), source)
        with pytest.raises(UsageError, match=said):
            pack(source, tmp_path / "to", memory="1MiB")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            *(f"{i}.parquet" for i in range(number + 1)),
            "cache",
        ]


def test_keys_of_a_column_are_kept_apart(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"__key__": ["a", "a", "a-00000001"], "x": [b"1", b"2", b"3"]}), tmp_path / "a.parquet")
    done = pack(tmp_path / "a.parquet", tmp_path / "to", memory="1MiB")
    assert len(set(names(done.pattern))) == 3
    assert open_data(done.pattern).layout.n_samples == 3


def test_rows_that_no_npy_can_hold_are_refused_by_their_type(tmp_path: Path) -> None:
    header = json.dumps({"t": {"dtype": "BF16", "shape": [20, 50], "data_offsets": [0, 2000]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2000))
    with pytest.raises(UsageError, match=r"rows of torch\.bfloat16.* leave the file as it is"):
        pack(str(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
