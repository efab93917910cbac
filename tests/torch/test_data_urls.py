"""URLs: fsspec reads them, and a store's change is seen by what it tells of the object."""

from __future__ import annotations

import errno
import io
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install '.[data]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import CapabilityError, FormatError, UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.retries import tried  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.source_reads import measured_costs  # noqa: E402
from sentinel.data.sources.paths import files_below, files_named, is_folder  # noqa: E402
from sentinel.data.sources.stored_file import (  # noqa: E402
    OutageError,
    StoredObject,
    Stream,
    cannot_be_read,
    file_at,
    files_at,
    opened,
)
from sentinel.samples import Order  # noqa: E402
from tests.data_files import mds, number_of, rows, shards  # noqa: E402
from tests.torch.loaders import sample_of  # noqa: E402


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The memory of this process as a store, with shards in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = fsspec.filesystem("memory")
    for path in shards(tmp_path, [30, 20]):
        made.pipe_file(f"/data/{Path(path).name}", Path(path).read_bytes())
    yield made
    made.store.clear()
    made.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("source", ["memory://data/train-{000..001}.tar", "memory://data/*.tar", "memory://data"])
def test_shards_of_a_store_are_read_in_torchs_order(store: Any, source: str) -> None:
    loader = sentinel.data.loader(source, number_of, batch_size=5, memory="50%", unit=4, workers=2)
    found = np.concatenate([batch.numpy() for batch in loader])
    loader.close()
    assert np.array_equal(found, permutation(50, Order(), 0))
    assert measured_costs(open_data(source)).measured
    with pytest.raises(UsageError, match="is only read: no index is kept there"):
        sentinel.data.index(source, beside=True)


def test_other_formats_of_a_store(store: Any, tmp_path: Path) -> None:
    path = rows(tmp_path, 20)
    store.pipe_file("/rows/a.npy", Path(path).read_bytes())
    data = open_data("memory://rows/a.npy")
    assert np.array_equal(sample_of(data, 7), np.load(path)[7])
    (tmp_path / "mds").mkdir()
    mds(tmp_path / "mds", {"x": ("str", None)}, [[{"x": b"a"}, {"x": b"bc"}]])
    store.put(str(tmp_path / "mds"), "/mds", recursive=True)
    data = open_data("memory://mds")
    assert sample_of(data, 1) == {"x": "bc"}


def test_parquet_of_a_store(store: Any) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
    import pyarrow.parquet as pq

    made = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(40)), "b": ["x" * i for i in range(40)]}), made, row_group_size=10)
    store.pipe_file("/rows/a.parquet", made.getvalue())
    data = open_data("memory://rows/a.parquet")
    assert sample_of(data, 33) == {"a": 33, "b": "x" * 33}


def test_an_object_that_changed_is_refused_by_name(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data("memory://data/train-000.tar")
    files = SourceFiles(data.layout, data.root)
    files.sample(0)
    url = "memory://data/train-000.tar"
    before = file_at(url)
    store.pipe_file("/data/train-000.tar", store.cat_file("/data/train-000.tar"))
    assert file_at(url) != before
    assert files_at([url]) == [file_at(url)]
    for read in (lambda: open_data(url), lambda: SourceFiles(data.layout, data.root).sample(0)):
        with pytest.raises(FormatError, match="changed since it was indexed") as error:
            read()
        assert error.value.path == url
    monkeypatch.setattr(StoredObject, "recheck_s", 0.0)
    with pytest.raises(FormatError, match="changed since it was indexed"):
        files.sample(0)


@pytest.mark.parametrize(
    ("told", "same"),
    [
        ({"ETag": '"a"', "LastModified": 2}, True),
        ({"ETag": '"b"', "LastModified": 1}, False),
        ({"mtime": 1.5}, False),
        ({"ETag": '"a"', "size": 7}, False),
    ],
)
def test_a_tag_counts_more_than_a_time(
    store: Any, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], same: bool
) -> None:
    made: dict[str, Any] = {"name": "/data/train-000.tar", "size": 5, "ETag": '"a"', "LastModified": 1}
    monkeypatch.setattr(type(store), "info", lambda self, path: made)
    before = file_at("memory://data/train-000.tar")
    made = {"name": "/data/train-000.tar", "size": 5, **told}
    assert (file_at("memory://data/train-000.tar") == before) is same


def test_what_is_not_there_is_refused_in_words(store: Any) -> None:
    for url in ("memory://nowhere/a.tar", "memory://data/a-{0..1}.tar"):
        with pytest.raises(FormatError, match="cannot be read"):
            open_data(url)
    with pytest.raises(FormatError, match="no file has such a name"):
        files_named("memory://data/*.npy")
    with pytest.raises(UsageError, match="files of several stores"):
        open_data(["memory://data/train-000.tar", "/a.tar"])
    with pytest.raises(FormatError, match="check its scheme"):
        open_data("nosuchscheme://data/a.tar")
    with pytest.raises(FormatError, match="has no size"):
        file_at("memory://data")
    assert not is_folder("memory://nowhere")
    assert files_below("memory://data/") == ["memory://data/train-000.tar", "memory://data/train-001.tar"]


def test_a_time_limit_within_a_request_is_the_scripts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its handler of a signal raises, whatever that is."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise KeyError("the script's limit")

    def limit(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    for name in ("info", "ls", "cat_file"):
        monkeypatch.setattr(type(store), name, limit)
    url = "memory://data/train-000.tar"
    try:
        for question in (lambda: files_at([url]), lambda: file_at(url), lambda: opened(url).read(0, 1)):
            with pytest.raises(KeyError, match="the script's limit"):
                question()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_store_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(CapabilityError, match=r"in a checkout: pip install '\.\[data\]'"):
        open_data("s3://bucket/a.tar")


def test_files_of_this_machine_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (path,) = shards(tmp_path, [12])
    loader = sentinel.data.loader(
        f"file://{path}", number_of, batch_size=4, memory="96KiB", unit=2, workers=1, multiprocessing_context="spawn"
    )
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(12))
    loader.close()


def test_a_stream_reads_what_is_held_from_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    stream = Stream(opened(str(tmp_path / "a")), 100, [(10, b"abcdef")])
    assert stream.seekable()
    assert stream.readable()
    assert stream.seek(12) == 12
    assert stream.read(3) == b"cde"
    assert stream.read(2) == bytes([15, 16])
    assert stream.seek(-2, 2) == 98
    assert stream.read() == bytes([98, 99])
    assert stream.tell() == 100
    assert stream.read(5) == b""
    assert io.BufferedReader(stream).seek(99) == 99


@pytest.mark.parametrize("name", ["Last-Modified", "Content-MD5", "blob_id", "xet_hash", "etag"])
def test_what_stores_tell_of_a_change_counts_however_it_is_written(
    store: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told = {"name": "/data/train-000.tar", "size": 5}
    found = []
    for value in ("a", "b"):
        monkeypatch.setattr(type(store), "info", lambda self, path, value=value: told | {name: value})
        found.append(file_at("memory://data/train-000.tar"))
    assert found[0] != found[1]


def test_a_store_that_answers_from_its_last_listing_is_asked_anew(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs and adlfs do: `files_at` has listed the folder."""
    listed: dict[str, dict[str, Any]] = {}
    real_info, real_ls = type(store).info, type(store).ls

    def ls(self: Any, path: str, detail: bool = True, **options: Any) -> Any:
        found = real_ls(self, path, detail=True, **options)
        listed.update({told["name"]: told for told in found})
        return found

    def info(self: Any, path: str, **options: Any) -> Any:
        return listed.get(path) or real_info(self, path, **options)

    def invalidate(self: Any, path: str | None = None) -> None:
        for name in [name for name in listed if path is None or name.rpartition("/")[0] == path]:
            del listed[name]

    for name, value in (("ls", ls), ("info", info), ("invalidate_cache", invalidate)):
        monkeypatch.setattr(type(store), name, value)
    monkeypatch.setattr(StoredObject, "recheck_s", 0.0)
    data = open_data("memory://data/train-000.tar")
    files = SourceFiles(data.layout, data.root)
    files.sample(0)
    assert files_at([data.root + "/train-000.tar"])
    assert listed
    store.pipe_file("/data/train-000.tar", store.cat_file("/data/train-000.tar"))
    with pytest.raises(FormatError, match="changed since it was indexed"):
        files.sample(0)


class _Web(SimpleHTTPRequestHandler):
    """A web server that knows no ranges, as Python's own."""

    def log_message(self, *said: Any) -> None:
        """Nothing."""


@contextmanager
def _served(handler: Any) -> Iterator[str]:
    """The URL of a web server whose requests `handler` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="needs aiohttp: pip install '.[data]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with _served(partial(_Web, directory=str(tmp_path))) as url:
        yield url


def test_a_server_that_cuts_ranges_short_is_no_damaged_file(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data("memory://data/train-000.tar")
    real = type(store).cat_file
    monkeypatch.setattr(type(store), "cat_file", lambda *given, **where: real(*given, **where)[:100])
    with pytest.raises(OutageError, match=r"its server sent 100 bytes of \d+; check that it knows ranges"):
        SourceFiles(data.layout, data.root).sample(0)


def test_what_a_store_does_not_allow_is_no_outage(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data("memory://data/train-000.tar")

    def refused(*_: Any, **__: Any) -> bytes:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(type(store), "cat_file", refused)
    with pytest.raises(FormatError, match="cannot be read: Forbidden") as raised:
        SourceFiles(data.layout, data.root).sample(0)
    assert not isinstance(raised.value, OutageError)


class _Answers(SimpleHTTPRequestHandler):
    """A web server that knows ranges of one file, until it answers with a status of error; 0: it hangs up."""

    content, status = b"", 200

    def do_HEAD(self) -> None:
        self._answer(self.content, with_body=False)

    def do_GET(self) -> None:
        asked = self.headers.get("Range", f"bytes=0-{len(self.content)}")  # without one for the folder, or for the size
        begin, stop = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        self._answer(self.content[begin : stop + 1])

    def _answer(self, content: bytes, with_body: bool = True) -> None:
        if self.status == 200:
            self.send_response(206 if with_body else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if with_body else b"")
        elif self.status:
            self.send_error(self.status)
        else:
            self.close_connection = True

    def log_message(self, *said: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("status", [401, 403, 404, 410, 408, 429, 500, 503, 0])
@pytest.mark.parametrize("asked", ["read", "state"])
def test_what_a_server_answers_for_good_is_an_error_at_once_and_all_else_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, asked: str
) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp: pip install '.[data]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (path,) = shards(tmp_path, [4])
    monkeypatch.setattr(_Answers, "content", Path(path).read_bytes())
    with _served(_Answers) as web:
        url = f"{web}/a.tar"
        data = open_data(url)
        files = SourceFiles(data.layout, data.root, data.source)
        right = bytes(files.sample(1).data)
        monkeypatch.setattr(_Answers, "status", status)
        if asked == "state":
            monkeypatch.setattr(StoredObject, "recheck_s", 0.0)
            monkeypatch.setattr(StoredObject, "read", lambda self, at, nbytes: bytes(nbytes))
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if seconds >= 1:
                monkeypatch.setattr(_Answers, "status", 200)

        monkeypatch.setattr("sentinel.data.retries.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        monkeypatch.setattr(tried, "__defaults__", (sleep,))
        if status in (401, 403, 404, 410):
            with pytest.raises(FormatError, match=f"{url}: .*cannot be read: {status}, .*you may read it") as raised:
                list(files.alone(np.array([1])))
            assert not isinstance(raised.value, OutageError)
            assert max(waits) < 1
        else:
            (found,) = files.alone(np.array([1]))
            assert asked == "state" or bytes(found) == right
            assert max(waits) == 1


def test_a_server_that_ignores_ranges_is_named_as_that(tmp_path: Path, web: str) -> None:
    (path,) = shards(tmp_path, [30])
    for name in (Path(rows(tmp_path, 20)).name, Path(path).name, f"{Path(path).name}?Signature=ab.c*"):
        with pytest.raises(FormatError, match=r"its server ignores ranges: it sent .* copy the files to a disk"):
            open_data(f"{web}/{name}")


def test_a_file_that_another_is_renamed_over_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = Path(rows(tmp_path, 20))
    data = open_data(str(path))
    files = SourceFiles(data.layout, data.root)
    one = bytes(files.sample(3).data)
    (tmp_path / "other").mkdir()
    Path(rows(tmp_path / "other", 20)).rename(path)
    assert bytes(files.sample(3).data) == one, "for a while the one that is open is read"
    monkeypatch.setattr("sentinel.data.sources.stored_file.NAMED_S", 0.0)
    for _ in range(2):
        with pytest.raises(FormatError, match="changed since it was indexed"):
            files.sample(3)


def test_a_limit_of_descriptors_is_not_taken_for_a_damaged_file(tmp_path: Path) -> None:
    (path,) = shards(tmp_path, [3])
    for code in (errno.EMFILE, errno.ENFILE):
        assert str(cannot_be_read(path, "file", OSError(code, os.strerror(code)))).endswith("raise `ulimit -n`")
