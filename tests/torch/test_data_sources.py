"""Sources of training data: samples are found without reading them, and what cannot be read is refused by name."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data import index_cache, source_files  # noqa: E402
from sentinel.data.data_index import RecordFiles, open_data  # noqa: E402
from sentinel.data.page_cache import in_page_cache  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.sources.folder import FolderOfFiles  # noqa: E402
from sentinel.data.sources.paths import expand_braces, files_below, files_named  # noqa: E402
from sentinel.data.sources.records import Records, Rows  # noqa: E402
from sentinel.data.sources.stored_file import file_at  # noqa: E402
from sentinel.data.sources.tar_shards import TarShards, split_name  # noqa: E402
from sentinel.data.staged_samples import Failed, FromFiles, Request, StagedSamples  # noqa: E402
from sentinel.files import load  # noqa: E402
from sentinel.samples import Layout  # noqa: E402
from tests.data_files import add, content, number_of, rows, shards  # noqa: E402
from tests.torch.loaders import sample_of  # noqa: E402


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_gives_what_tarfile_gives(folder: Path, form: int) -> None:
    paths = shards(folder, [5, 1, 9], format=form)
    data = open_data(paths)
    assert data.layout.n_samples == 15
    assert [number_of(sample_of(data, i)) for i in range(15)] == list(range(15))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_other_members_and_folders_in_names(folder: Path, form: int) -> None:
    name = "photos.v1/" + "long " * 50 + "ü"
    with tarfile.open(folder / "a.tar", "w", format=form) as tar:
        tar.addfile(tarfile.TarInfo("photos.v1/") if False else _folder("photos.v1"))
        for number in range(3):
            add(tar, f"{name}{number}.left.PNG", content(number, 10))
            add(tar, f"{name}{number}.txt", b"")
        add(tar, "README", b"no sample")
    data = open_data(folder / "a.tar")
    assert [sample_of(data, i) for i in range(3)] == [
        {"__key__": f"{name}{i}", "left.png": content(i, 10), "txt": b""} for i in range(3)
    ]


def _folder(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = tarfile.DIRTYPE
    return made


def test_names_are_split_as_webdataset_does() -> None:
    assert split_name("a/b.c/d.e.f") == ("a/b.c/d", "e.f")
    assert split_name("000.JPG") == ("000", "jpg")
    for name in ("README", "a.b/c", ".hidden", "a/.x.y"):
        assert split_name(name) is None


def test_contents_are_not_read_for_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = shards(folder, [20], nbytes=1 << 20, uneven=False)
    got: list[int] = []
    real = os.pread

    def counted(descriptor: int, nbytes: int, at: int) -> bytes:
        got.append(nbytes)
        return real(descriptor, nbytes, at)

    monkeypatch.setattr(os, "pread", counted)
    TarShards().scan(file_at(path))
    assert sum(got) < 1 << 20


def _shard(path: Path, *members: str) -> Path:
    with tarfile.open(path, "w") as tar:
        for name in members:
            add(tar, name, b"x")
    return path


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["a.jpg", "a.cls", "b.jpg"], "'b' lacks cls"),
        (["a.jpg", "b.jpg", "b.cls"], "'b' has cls, which the first one lacks"),
        (["a.jpg", "a.jpg"], "'a' has two members 'jpg'"),
        (["a.jpg", "b.jpg", "a.jpg"], "the members of 'a' do not follow one another"),
        (["README"], "holds no sample"),
    ],
)
def test_members_that_make_no_samples_are_refused(folder: Path, members: list[str], said: str) -> None:
    with pytest.raises(FormatError, match=said) as error:
        open_data(_shard(folder / "a.tar", *members))
    assert error.value.path == str(folder / "a.tar")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_in_the_place_of_a_file_is_refused(folder: Path, kind: bytes) -> None:
    with tarfile.open(folder / "a.tar", "w") as tar:
        add(tar, "a.txt", b"x")
        for name in ("folder", "b.txt"):  # only what would be a sample's is missing in one
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a.txt"
            tar.addfile(link)
    with pytest.raises(FormatError, match=r"has a link in the place of a file, 'b\.txt'.*--hard-dereference"):
        open_data(folder / "a.tar")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("at", [0, 40, 100, 124 + 9, 148 + 3, 156, 300, 511])
def test_a_header_of_which_one_byte_is_another_is_refused(folder: Path, form: int, at: int) -> None:
    (path,) = shards(folder, [3], format=form)
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(FormatError, match="damaged header at byte 0"):
        open_data(path)


def test_a_checksum_of_signed_bytes_is_as_good(folder: Path) -> None:
    (path,) = shards(folder, [3], format=tarfile.USTAR_FORMAT)
    data = bytearray(Path(path).read_bytes())
    data[500] = 0xFF  # of no meaning
    signed = sum(data[:148]) + 8 * 32 + sum(data[156:512]) - 256
    data[148:156] = b"%06o\0 " % signed
    Path(path).write_bytes(data)
    assert open_data(path).layout.n_samples == 3


def test_a_file_that_is_named_in_two_ways_is_given_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(folder, [3])
    (name,) = os.listdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="is given twice"):
        files_named([name, f"./{name}"])


@pytest.mark.parametrize("cut", [0, 100, 512, 700, 1200, 2048, 5000])
def test_a_shard_that_was_cut_short_is_refused(folder: Path, cut: int) -> None:
    (path,) = shards(folder, [3])
    os.truncate(path, cut)
    with pytest.raises(FormatError, match=r"cut short|is empty|no end mark"):
        open_data(path)


def test_what_is_no_plain_tar_is_refused(folder: Path) -> None:
    (path,) = shards(folder, [3])
    packed = gzip.compress(Path(path).read_bytes())
    (folder / "a.tar.gz").write_bytes(packed)
    (folder / "b.tar").write_bytes(packed)
    (folder / "c.tar").write_bytes(content(0, 4096))
    for name, said in (
        ("a.tar.gz", "decompress it"),
        ("b.tar", "run gunzip"),
        ("c.tar", "not a tar file|damaged header"),
    ):
        with pytest.raises(FormatError, match=said):
            open_data(folder / name)


def test_rows_of_arrays(folder: Path) -> None:
    path = rows(folder, 30)
    data = open_data(path)
    for i in (0, 29, 7):
        assert np.array_equal(sample_of(data, i), np.load(path)[i])
    for name, array, said in (
        ("f", np.asfortranarray(np.ones((3, 4))), "Fortran order"),
        ("n", np.float32(3), "without rows"),
        ("e", np.ones((0, 3)), "no row"),
    ):
        np.save(folder / f"{name}.npy", array)
        with pytest.raises(FormatError, match=said):
            open_data(folder / f"{name}.npy")
    np.save(folder / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(FormatError, match="pickled"):
        open_data(folder / "o.npy")
    np.save(folder / "x.npy", np.ones((3, 7)))
    with pytest.raises(FormatError, match="give files of one form"):
        open_data([path, folder / "x.npy"])
    os.truncate(path, os.stat(path).st_size - 1)
    with pytest.raises(FormatError, match="cut short"):
        sentinel.data.index(path)


def test_rows_of_a_tensor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    tensors = {
        "tokens": torch.arange(60, dtype=torch.int32).reshape(20, 3),
        "half": torch.arange(8, dtype=torch.bfloat16).reshape(4, 2),
        "one": torch.tensor(3.0),
    }
    save_file(tensors, folder / "a.safetensors")
    save_file({"tokens": tensors["tokens"]}, folder / "b.safetensors")
    assert np.array_equal(sample_of(open_data(folder / "b.safetensors"), 19), [57, 58, 59])
    both = sentinel.data.safetensors([folder / "a.safetensors", folder / "b.safetensors"], "tokens")
    assert open_data(both).layout.n_samples == 40
    monkeypatch.setattr(Rows, "scan", None)  # the index comes from the cache
    again = sentinel.data.safetensors(both.paths, "tokens")
    assert np.array_equal(sample_of(open_data(again), 21), [3, 4, 5])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    found = sample_of(open_data(sentinel.data.safetensors(folder / "a.safetensors", "half")), 3)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, tensors["half"][3])
    for name, said in (
        (None, r"several tensors \(half, one, tokens\)"),
        ("x", "no tensor 'x'"),
        ("one", "without rows"),
    ):
        with pytest.raises(FormatError, match=said):
            open_data(RecordFiles((str(folder / "a.safetensors"),), Rows("safetensors", name)))
    os.truncate(folder / "b.safetensors", os.stat(folder / "b.safetensors").st_size - 1)
    with pytest.raises(FormatError, match="cut short"):
        sentinel.data.index(folder / "b.safetensors")
    for content_ in (b"", b"12345678", (100).to_bytes(8, "little") + b"x" * 100, (2).to_bytes(8, "little") + b"[]"):
        (folder / "c.safetensors").write_bytes(content_)
        with pytest.raises(FormatError, match="no sound header"):
            sentinel.data.index(folder / "c.safetensors")


def test_folders_that_might_be_read_in_two_ways_are_refused(folder: Path) -> None:
    rows(folder, 3)
    with pytest.raises(UsageError, match="each row or each file may be a sample"):
        open_data(folder)
    (folder / "rows.npy").rename(folder / "x.txt")
    shards(folder, [2])
    with pytest.raises(UsageError, match=r"has \.tar files and others, such as x\.txt"):
        open_data(folder)
    (folder / "x.txt").unlink()
    assert open_data(folder).layout.n_samples == 2


def test_records_without_a_header(folder: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(folder / "t.bin")
    data = open_data(sentinel.data.records(folder / "t.bin", "uint16", 33))
    assert data.layout.n_samples == 30
    assert np.array_equal(sample_of(data, 29), tokens[29 * 33 : 30 * 33])
    with pytest.raises(UsageError, match=r"there is no reader for .bin"):
        open_data(folder / "t.bin")
    with pytest.raises(FormatError, match="give a smaller shape"):
        Records("uint16", 1001).scan(file_at(str(folder / "t.bin")))
    with pytest.raises(UsageError, match="hold no bytes"):
        Records("uint16", 0)
    for shape in (1 << 70, (1 << 40, 1 << 40)):
        with pytest.raises(FormatError, match="give a smaller shape"):
            Records("uint16", shape).scan(file_at(str(folder / "t.bin")))


def test_a_folder_of_files(folder: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/.hidden", "c.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    data = open_data(folder)
    assert isinstance(data.source, FolderOfFiles)
    expected = [(str(folder / name), name.encode()) for name in ("a.txt", "b/2.txt", "c.jpg")]
    assert [sample_of(data, i) for i in range(3)] == expected
    assert files_below(str(folder)) == [path for path, _ in expected]
    (folder / "d.jpg").touch()
    with pytest.raises(FormatError, match=r"d\.jpg: file: is empty"):
        open_data(folder)


def test_patterns() -> None:
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{a,b}{0..1}") == ["a0", "a1", "b0", "b1"]
    for bad in ("{}", "{3..1}", "{x..y}"):
        with pytest.raises(UsageError):
            expand_braces(bad)
    with pytest.raises(FormatError, match="no file has such a name"):
        files_named("/nowhere/*.tar")
    with pytest.raises(UsageError, match="given twice"):
        files_named(["/a.tar", "/a.tar"])


def test_the_index_is_kept_for_its_owner_alone_and_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = shards(folder, [4, 4])
    first = open_data(paths).layout
    (kept,) = (Path(os.environ["XDG_CACHE_HOME"]) / "sentinel" / "data").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert isinstance(load(kept), Layout)
    monkeypatch.setattr(TarShards, "scan", None)
    assert open_data(paths).layout.digest == first.digest
    kept.write_bytes(kept.read_bytes()[:-1])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.parents[2]))
    with pytest.warns(RuntimeWarning, match="this index is not used"):
        assert open_data(paths).layout.digest == first.digest


def test_indexes_in_the_cache_that_were_not_used_for_longest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = shards(folder, [4] * 5)
    kept = [sentinel.data.index(path) for path in paths[:3]]
    for age, place in enumerate(kept):
        os.utime(place, ns=(0, age + 1))
    other, of_a_killed_job = kept[0].parent / "other", kept[0].parent / ".sentinel-0123456789abcdef"
    other.write_bytes(bytes(1 << 16))
    of_a_killed_job.write_bytes(bytes(1 << 16))
    os.utime(of_a_killed_job, ns=(0, 1))
    open_data(paths[0])  # the oldest is the one that was used last
    nbytes = kept[0].stat().st_size
    monkeypatch.setattr(index_cache, "MOST_BYTES", 3 * nbytes + nbytes // 2)
    open_data(paths[3])
    assert [place.exists() for place in (*kept, of_a_killed_job)] == [True, False, True, False]
    monkeypatch.setattr(index_cache, "MOST_BYTES", 0)
    last = sentinel.data.index(paths[4])
    assert set(last.parent.iterdir()) == {last, other}
    assert open_data(paths[1]).layout.n_samples == 4


def test_data_sets_of_many_files_share_a_quarter_of_the_descriptors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(shards(folder, [1] * 8))
    monkeypatch.setattr(source_files, "_OPEN_ENCODED", 4)
    monkeypatch.setattr(source_files.resource, "getrlimit", lambda _: (32, 32))
    before = len(os.listdir("/proc/self/fd"))

    def opened_by(*readers: SourceFiles) -> int:
        for files in readers:
            for sample in range(8):
                assert files.sample(sample).tobytes()
        return len(os.listdir("/proc/self/fd")) - before

    first = SourceFiles(data.layout, data.root)
    assert opened_by(first) == 8
    second = SourceFiles(data.layout, data.root)
    assert opened_by() == 4  # the first one gave back what the second may open
    assert opened_by(second, first, second) == 8
    del first
    assert opened_by(second) == 8


def test_an_index_beside_the_data_or_at_a_path(folder: Path, tmp_path: Path) -> None:
    paths = shards(folder, [4])
    beside = sentinel.data.index(paths, beside=True)
    assert beside.parent == folder
    kept = sentinel.data.index(paths, tmp_path / "mine")
    rights = [path.stat().st_mode & 0o777 for path in (beside, kept)]
    (tmp_path / "any").touch()
    assert rights == [(tmp_path / "any").stat().st_mode & 0o777] * 2  # others who train on the data may read it
    (tmp_path / "any").unlink()
    assert open_data(paths, kept).layout.n_samples == 4
    (other,) = shards(tmp_path, [4])
    with pytest.raises(FormatError, match="index of other files"):
        open_data([*paths, other], kept)


@pytest.mark.parametrize("how", ["longer", "touched", "gone"])
def test_a_source_that_changed_is_refused_by_name(folder: Path, how: str) -> None:
    paths = shards(folder, [4, 4])
    data = open_data(paths)
    if how == "longer":
        with open(paths[1], "ab") as file:
            file.write(bytes(512))
    elif how == "touched":
        os.utime(paths[1], ns=(0, 1))
    else:
        os.unlink(paths[1])
    with pytest.raises(FormatError, match=r"changed since it was indexed|cannot be read") as error:
        open_data(paths)
    assert error.value.path == paths[1]
    files = SourceFiles(data.layout, data.root)
    whole, (begin,), *_ = files.chunk(0, np.array([1]))
    assert whole[begin:].tobytes().startswith(files.sample(1).tobytes())
    with pytest.raises(FormatError, match=r"changed since it was indexed|cannot be read"):
        files.sample(5)


def test_a_file_that_is_rewritten_in_place_while_it_is_open_is_refused_by_name(folder: Path) -> None:
    (path,) = shards(folder, [4])
    data = open_data([path])
    files = SourceFiles(data.layout, data.root)
    files.sample(0)
    with open(path, "r+b") as file:
        file.write(bytes(512))
    os.utime(path, ns=(0, 1))  # whatever the clock of the file system resolves
    with pytest.raises(FormatError, match="changed since it was indexed") as error:
        files.sample(0)
    assert error.value.path == path


def change(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(512))
    os.utime(path, ns=(0, 1))  # whatever the clock of the file system resolves


@pytest.mark.parametrize("how", ["decode", "transform", "none"])
def test_a_file_that_changes_within_a_batch_is_refused_by_name_before_the_batch_is_given(
    folder: Path, how: str
) -> None:
    """Read alone from an open file, samples are decoded before it is asked whether the file is as it was."""
    paths = shards(folder, [4, 4])
    data = open_data(paths)
    files = SourceFiles(data.layout, data.root, data.source)
    source = FromFiles(files, data.source)
    samples = StagedSamples(source, None)
    batch = np.arange(8)
    request = Request(0, batch, batch < 0, batch >= 0)
    whole, served = samples.__getitems__(request)
    assert isinstance(whole, list)
    assert [number_of(each) for each in whole] == batch.tolist()
    assert served.direct_reads == 8

    def transform(sample: dict[str, object]) -> int:
        if number_of(sample) == 2:  # type: ignore[arg-type]
            change(paths[1 if how == "decode" else 0])
            if how == "transform":
                raise ValueError("what it got is damaged")
        return 0

    found, _ = StagedSamples(source, transform).__getitems__(request)
    assert isinstance(found, Failed)
    assert found.path == paths[1 if how == "decode" else 0]
    assert "changed since it was indexed" in found.rule


def test_what_an_old_descriptor_read_is_refused_by_name_though_the_file_was_restored_and_opened_anew(
    folder: Path,
) -> None:
    """All within a batch: the file is rewritten in place, closed because others were opened, and restored by a copy."""
    (path,) = shards(folder, [4])
    copy = folder.parent / "copy"
    shutil.copy2(path, copy)
    data = open_data([path])
    files = SourceFiles(data.layout, data.root)
    files.sample(0)
    read = files.alone(np.arange(4))
    next(read)
    change(path)
    next(read)
    files.close()
    os.replace(copy, path)
    with pytest.raises(FormatError, match="changed since it was indexed") as error:
        list(read)
    assert error.value.path == path


def test_what_a_transform_raises_of_sound_bytes_is_the_users_own(folder: Path) -> None:
    data = open_data(shards(folder, [4]))
    samples = StagedSamples(FromFiles(SourceFiles(data.layout, data.root), data.source), lambda _: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            samples.__getitems__(Request(0, np.arange(4), np.zeros(4, np.bool_), np.ones(4, np.bool_)))


def test_a_transform_that_has_run_dry_shortens_no_batch(folder: Path) -> None:
    data = open_data(shards(folder, [4]))
    noise = iter([1, 2])
    samples = StagedSamples(
        FromFiles(SourceFiles(data.layout, data.root), data.source), lambda sample: (sample, next(noise))
    )
    with pytest.raises(StopIteration):
        samples.__getitems__(Request(0, np.arange(4), np.zeros(4, np.bool_), np.ones(4, np.bool_)))


def test_the_kernel_reads_no_more_of_a_file_than_it_is_asked_for(scratch: Path) -> None:
    np.save(scratch / "rows.npy", np.zeros((2048, 4096), np.uint8))
    data = open_data(str(scratch / "rows.npy"))
    files = SourceFiles(data.layout, data.root, data.source)
    files.sample(0)
    with open(scratch / "rows.npy", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            pass
        else:
            pytest.skip("needs a file system on a disk, which reads with RWF_NOWAIT")
        for sample in range(1024, 1028):  # one after the other: the kernel takes it for reading all of the file
            files.sample(sample)
            begin = int(data.layout.sample_offset[sample])
            assert in_page_cache(file.fileno(), begin, 4096)
        assert not in_page_cache(file.fileno(), begin + 8192)
    os.unlink(scratch / "rows.npy")


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for where in ("data/a/1", "elsewhere/2"):
        (tmp_path / where).write_bytes(b"x")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "c").symlink_to(tmp_path / "data")  # a circle
    found = [str(Path(path).relative_to(tmp_path)) for path in files_below(str(tmp_path / "data"))]
    assert found == ["data/a/1", "data/b/2"]


def test_a_file_that_is_cut_short_while_it_is_open_names_the_sample(folder: Path) -> None:
    data = open_data(shards(folder, [4]))
    files = SourceFiles(data.layout, data.root)
    files.sample(0)
    os.truncate(files.path_of_file(0), 1024)
    with pytest.raises(FormatError, match="sample 3: the file ends within it"):
        files.sample(3)


@pytest.mark.parametrize("size", [b"-0000001000", b"+0000001000", b"00000_01000"])
def test_a_size_of_other_than_octal_digits_is_refused(folder: Path, size: bytes) -> None:
    data = bytearray(Path(*shards(folder, [2])).read_bytes())
    data[124:135] = size
    (folder / "a.tar").write_bytes(data)
    with pytest.raises(FormatError, match="a damaged header at byte 0"):
        open_data(folder / "a.tar")


def test_an_index_takes_the_place_of_no_source(folder: Path) -> None:
    path = Path(rows(folder, 5))
    before = path.read_bytes()
    (folder / "link").symlink_to(path)
    for place in (path, folder / "link", folder / ".." / "data" / path.name):
        with pytest.raises(UsageError, match="is a file of the data set"):
            sentinel.data.index(path, place)
    assert path.read_bytes() == before
    for _ in range(2):  # one that is there is made again
        assert sentinel.data.index(path, folder / "index") == folder / "index"


def test_names_that_are_no_utf_8_are_read_without_a_kept_index(folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9.tar")
    os.rename(*shards(folder, [3]), folder / name)
    data = open_data(folder / name)
    assert [number_of(sample_of(data, i)) for i in range(3)] == [0, 1, 2]
    assert data.layout.digest == open_data(folder / name).layout.digest
    with pytest.raises(FormatError, match="is not UTF-8"):
        sentinel.data.index(folder / name)


def test_an_index_made_anew_in_the_cache_takes_the_place_of_an_old_one_beside_the_data(folder: Path) -> None:
    paths = shards(folder, [4])
    sentinel.data.index(paths, beside=True)
    os.utime(paths[0], ns=(0, 1))
    with pytest.raises(FormatError, match="changed since it was indexed"):
        open_data(paths)
    sentinel.data.index(paths)  # as the error says
    assert open_data(paths).layout.file_mtime_ns.tolist() == [os.stat(paths[0]).st_mtime_ns]


def test_an_old_index_in_the_cache_is_no_matter_where_a_new_one_is_beside_the_data(folder: Path) -> None:
    paths = shards(folder, [4])
    sentinel.data.index(paths)
    os.utime(paths[0], ns=(0, 1))
    sentinel.data.index(paths, beside=True)
    assert open_data(paths).layout.file_mtime_ns.tolist() == [os.stat(paths[0]).st_mtime_ns]


def test_a_cache_that_may_not_be_entered_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, real = shards(folder, [4]), os.stat

    def stat(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if str(path).startswith(os.environ["XDG_CACHE_HOME"]):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, "stat", stat)
    assert open_data(paths).layout.n_samples == 4


def test_a_folder_that_cannot_be_listed_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", ".hidden", "lost+found"):
        (folder / name).mkdir()
        (folder / name / "1").write_bytes(b"x")
    real, closed = os.scandir, [str(folder / name) for name in ("b", ".hidden", "lost+found")]

    def scandir(path: str) -> Any:
        if path in closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(FormatError, match="folder: cannot be read: Permission denied") as error:
        files_below(str(folder))
    assert error.value.path == str(folder / "b")
    closed.remove(str(folder / "b"))
    assert {os.path.basename(os.path.dirname(path)) for path in files_below(str(folder))} >= {"a", "b"}


def test_a_folder_whose_name_is_no_utf_8_has_an_index_in_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = folder / os.fsdecode(b"caf\xe9")
    named.mkdir()
    paths = shards(named, [3])
    assert [number_of(sample_of(open_data(paths), i)) for i in range(3)] == [0, 1, 2]
    monkeypatch.setattr(TarShards, "scan", None)
    assert open_data(paths).layout.n_samples == 3


def test_too_many_samples_are_refused_before_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "big.bin", "wb") as file:
        file.truncate(10**12)
    said = "has at least 1000000000000 samples, each of which needs an entry in memory; give at most 100000000"
    with pytest.raises(UsageError, match=said):
        sentinel.data.index(sentinel.data.records(str(tmp_path / "big.bin"), "uint8", 1))
    monkeypatch.setattr("sentinel.data.sources.source.MOST_SAMPLES", 50)
    with pytest.raises(UsageError, match="has at least 60 samples"):
        sentinel.data.index(shards(tmp_path, [30, 30, 30]))
