"""What a loader reads, in which unit, and what its report says of it. What it delivers: test_data_loader.py."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data
from sentinel.data.data_index import open_data
from sentinel.data.feed_facts import Fed
from sentinel.data.feed_report import FeedReport
from sentinel.data.feed_sections import FEED_SECTIONS
from sentinel.data.feeding import FileFeeding
from sentinel.data.hit_places import HitsByPlace
from sentinel.data.page_cache import all_cached, in_page_cache
from sentinel.data.unit_choice import CACHED
from sentinel.reports import ReportError
from sentinel.samples import SourceCosts, neighbourhoods, shuffle_quality
from tests.data_files import number_of, rows
from tests.torch.loaders import COUNT, Numbers, epoch_of, loader_of, torchs

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_report_adds_up(tars: list[str], tmp_path: Path) -> None:
    loader = loader_of(tars)
    epoch_of(loader)
    epoch_of(loader)
    report = loader.report()
    assert isinstance(report, FeedReport)
    headline = report.headline
    assert {"samples", "hits", "source_reads", "source_bytes", "direct_reads", "peak_bytes", "wait_ns"} < set(headline)
    chunks = sum(-(-count // 16) for count in (200, 150, 250))
    assert headline["reads_per_chunk"] == pytest.approx(headline["source_reads"] / chunks / 2)
    assert headline["reads_saved"] == 1 - headline["source_reads"] / 1200
    assert headline["hit_ratio"] == headline["hits"] / 1200
    assert headline["sample_bytes"] == headline["hit_bytes"] + headline["brought_bytes"]
    assert headline["bytes_saved"] == 1 - headline["source_bytes"] / headline["sample_bytes"] < 0
    predicted = report.predicted
    assert predicted is not None
    for name in ("samples", "hits", "source_reads", "source_bytes", "direct_reads"):
        assert getattr(predicted, name) == getattr(report.epoch, name), name
    assert report.number == 1
    assert sum(report.node_pages.values()) * 4096 >= headline["peak_bytes"]
    said = report.text()
    for part in ("reads_per_chunk", "Where the samples came from", "predicted for it", "saved   ", "node 0"):
        assert part in said
    assert repr(report).startswith("<FeedReport 1200 samples")
    for name in ("r.html", "r.json", "r.csv", "r.txt"):
        assert report.write(tmp_path / name)[0].stat().st_size > 300
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["headline"] == headline
    assert sum(told["frames"]["requests"]["samples"]) == 1200
    assert list(told["frames"]) == [section.table for section in FEED_SECTIONS]
    assert isinstance(report.last, Fed)
    assert told["frames"]["counts"]["name"] == list(headline)
    assert (tmp_path / "r-direct_reads.csv").read_text().splitlines()[0] == "why,samples"
    assert sum(report.hits_by_tier.values()) == headline["hits"] > 0
    assert told["hits_by_tier"] == report.hits_by_tier


@pytest.mark.parametrize(
    ("name", "said"),
    [("hits", "add up to"), ("samples", "were delivered"), ("hit_bytes", "bytes"), ("by_place", "tiers")],
)
def test_a_report_whose_sums_do_not_agree_is_refused(tars: list[str], name: str, said: str) -> None:
    loader = loader_of(tars)
    epoch_of(loader)
    served = loader._total.served
    if name == "by_place":
        served.by_place += HitsByPlace({7: (1, 0)})
    else:
        setattr(served, name, getattr(served, name) - 1)
    with pytest.raises(ReportError, match=said):
        loader.report()


def test_epochs_that_were_left_count_in_reads_a_chunk(tars: list[str]) -> None:
    whole, left = loader_of(tars), loader_of(tars)
    epoch_of(whole)
    for _ in range(2):
        for number, _ in enumerate(left):
            if number == 9:
                break
    feed, n_chunks = left.report().feed, whole.report().feed.n_chunks
    assert feed.n_chunks == pytest.approx(n_chunks * 2 * 320 / COUNT, abs=1)
    assert 1 < feed.reads_per_chunk < 16


def test_the_least_costly_unit_may_be_none(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: False)
    for costs, direct in ((SourceCosts(1e3, 1e10, 1), COUNT), (SourceCosts(2e6, 1e9, 1), 0)):
        monkeypatch.setattr("sentinel.data.source_reads.measured_costs", lambda _, costs=costs: costs)
        loader = loader_of(tars, unit="auto", workers=2)
        assert epoch_of(loader) == torchs(0, 0)
        assert loader.report().feed.direct_reads == direct
        caveats = loader.report().caveats
        assert any("each sample alone is cheapest" in said for said in caveats) == bool(direct)
        assert any("samples those that stay are read: a read takes 2" in said for said in caveats) != bool(direct)
        assert ("nothing is staged here" in loader.report().text()) == bool(direct)
        assert "0.00 reads a chunk" not in loader.report().text()
        state = loader.state_dict()
        loader.close()
        other = loader_of(tars)
        other.load_state_dict(state)  # the order is the same, whatever brings it
        assert epoch_of(other) == torchs(0, 1)


def test_time_that_was_predicted_stands_beside_that_of_the_reads(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = SourceCosts(2e6, 1e9, 2)
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: False)
    monkeypatch.setattr("sentinel.data.source_reads.measured_costs", lambda _: costs)
    for unit, known in (("auto", True), (16, False)):
        loader = loader_of(tars, unit=unit)
        epoch_of(loader)
        counts = loader.report().frames()["counts"].set_index("name")
        reads, nbytes = counts["predicted"]["source_reads"], counts["predicted"]["source_bytes"]
        assert counts["epoch"]["source_reads"] == reads
        assert counts["epoch"]["read_ns"] > 0
        predicted = counts["predicted"].fillna(-1)["read_ns"]
        ranges = counts["predicted"]["source_ranges"]
        assert counts["epoch"]["source_ranges"] == ranges
        assert ranges == reads  # no gap in these chunks is as long as what is read in 2 ms
        assert predicted == (round(costs.ns(ranges, nbytes)) if known else -1)


def test_parts_of_chunks_are_read_where_that_costs_less(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted is read, the bytes are those of the files, and fewer than of whole chunks."""
    costs = SourceCosts(20e3, 5e8, 1)
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: False)
    monkeypatch.setattr("sentinel.data.source_reads.measured_costs", lambda _: costs)
    monkeypatch.setattr("sentinel.samples.reading_unit.staging_ns", lambda _: 0)  # else each is read alone
    loader = loader_of(tars, unit="auto", workers=2)
    assert epoch_of(loader) == torchs(0, 0)
    assert epoch_of(loader) == torchs(0, 1)
    counts = loader.report().frames()["counts"].set_index("name")
    epoch, predicted = counts["epoch"], counts["predicted"]
    for name in ("source_reads", "source_ranges", "source_bytes"):
        assert epoch[name] == predicted[name], name
    assert epoch["source_ranges"] > epoch["source_reads"]
    fixed = loader_of(tars, unit=int(loader.state_dict()["unit"]), workers=2)
    epoch_of(fixed)
    epoch_of(fixed)
    assert epoch["source_bytes"] < fixed.report().epoch.source_bytes


def test_the_report_says_how_well_the_order_mixes(tars: list[str]) -> None:
    layout = neighbourhoods(open_data(tars).layout)
    for order in ("exact", "windowed", "redirect"):
        for unit in (8, 16):  # told in the same chunks, whatever is read at once
            loader = loader_of(tars, order=order, unit=unit)
            assert loader.report().mixing is None
            delivered = np.array(epoch_of(loader))
            report = loader.report()
            assert report.mixing == shuffle_quality(layout, delivered, 32)
            assert report.frames()["mixing"]["span"].tolist() == [report.mixing.span]
            assert "distinct chunks in a batch" in report.text()
    loader = loader_of(Numbers(), None)
    epoch_of(loader)
    assert loader.report().mixing is None


def test_the_report_names_orders_that_read_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(memory: str, order: str, **options: Any) -> str:
        loader = loader_of(path, None, memory=memory, order=order, unit=64, **options)
        epoch_of_rows = iter(loader)
        next(epoch_of_rows)
        return "\n".join(loader.report().caveats)

    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: False)
    path = rows(tmp_path, 16_384, 500)
    much, little = said("20%", "exact"), said("3%", "exact")
    assert "order='windowed' would read a chunk 1.00 times" in much
    assert "redirect" not in much
    assert "order='redirect' would read a chunk" in little
    assert "read a chunk" not in said("20%", "windowed")
    assert "order='exact' would read a chunk 2" in said("20%", "redirect")
    assert "read a chunk" not in said("200%", "exact")
    assert "each sample alone" not in much
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: True)
    for order in ("exact", "windowed"):
        assert "all files were in the page cache" in said("20%", order)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_in_the_page_cache_are_read_alone(tars: list[str], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.data.page_cache.in_page_cache", lambda *_: True)
    loader = sentinel.data.loader(tars, number_of, batch_size=32, memory="20%", workers=workers)
    for epoch in range(2):
        assert epoch_of(loader) == torchs(0, epoch)
    report = loader.report()
    assert CACHED in report.caveats
    assert report.feed.direct_reads == 2 * COUNT
    assert report.feed.direct_bytes == report.feed.sample_bytes
    loader.close()
    assert isinstance(loader_of(tars, order="windowed", unit="auto")._feeding, FileFeeding)
    monkeypatch.setattr("sentinel.data.page_cache.available_bytes", lambda: 1 << 10)
    assert not all_cached(open_data(tars))


def test_what_is_in_the_page_cache(tars: list[str]) -> None:
    data = open_data(tars)
    with open(tars[0], "rb") as file:
        nbytes = len(file.read())
        try:
            told = os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:  # this file system does not tell
            told = False
        assert in_page_cache(file.fileno(), 0, nbytes) == told
        assert not in_page_cache(file.fileno(), 0, nbytes + 1)
    assert all_cached(data) == told
    assert not all_cached(replace(data, layout=replace(data.layout, encoded=True)))


def test_files_of_one_sample_are_to_be_packed_and_shards_read_one_by_one_are_not(
    tars: list[str], tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    for number in range(40):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes(900))
    told = {}
    for source in (str(tmp_path / "files"), tars):
        loader = sentinel.data.loader(source, lambda _: 0, batch_size=8, memory="1MiB", unit=1)
        assert len(next(iter(loader))) == 8
        told[str(source)] = loader.report().caveats
        loader.close()
    assert [any("pack small files" in said for said in caveats) for caveats in told.values()] == [True, False]
