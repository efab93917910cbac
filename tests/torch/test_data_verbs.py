"""`sentinel data`: index, plan and run, in tables and JSON; errors are one line and a code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.cli import main  # noqa: E402
from sentinel.cli.data import _source, forecast_json  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.forecast import RANDOM  # noqa: E402
from sentinel.data.source_reads import SourceReads, measured_costs  # noqa: E402
from sentinel.data.unit_choice import CACHED  # noqa: E402
from sentinel.samples import ALONE, SourceCosts  # noqa: E402
from tests.data_files import rows, shards  # noqa: E402


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)  # however busy the host is
    return shards(tmp_path, [900, 700])


def test_index_says_where_it_is(tars: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "index", *tars, "-o", str(tmp_path / "mine"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["index"], found["samples"], found["files"]) == (str(tmp_path / "mine"), 1600, 2)
    pattern = str(tmp_path / "train-{000..001}.tar")
    assert main(["data", "index", pattern, "--beside"]) == 0
    assert ".sentinel-layout-" in capsys.readouterr().out
    assert main(["data", "index", pattern, "--beside", "-o", "x"]) == 2


def test_plan_tells_each_order_and_whether_it_is_worth_it(
    tars: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few").mkdir()
    assert main(["data", "plan", *tars, "--memory", "20%,50%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["order"] for row in found["rows"]] == [RANDOM, *2 * ["exact", "windowed", "redirect"]]
    assert found["costs"]["measured"] is True
    assert main(["data", "plan", *tars]) == 0
    shown = capsys.readouterr().out
    assert "reads a chunk" in shown
    assert "exact" in shown
    assert main(["data", "plan", *shards(tmp_path / "few", [40]), "--memory", "76KiB", "--unit", "64"]) == 0
    assert "memory 76KiB is little: chunks of 4 samples, not 64" in capsys.readouterr().out


def test_names_of_columns_may_have_spaces_between_them() -> None:
    given = argparse.Namespace(source=["rows.parquet"], columns="a, b", tensor=None, record=None)
    found = _source(given)
    assert isinstance(found, sentinel.data.RecordFiles)
    assert found.source.kind == "parquet of a,b"


def test_pack_says_what_it_has_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "pack", *shards(tmp_path, [40]), "--to", str(tmp_path / "to")]) == 0
    assert capsys.readouterr().out.startswith("40 samples in 1 shard, ")


def test_the_verdict_follows_from_what_reads_cost(tars: list[str]) -> None:
    slow = sentinel.data.forecast(tars, "20%", costs=SourceCosts(2e6, 1e9))
    assert "times as fast as random access" in slow.verdict
    assert any("declared" in note for note in slow.notes)
    exact = next(row for row in slow.rows if row.order == "exact")
    assert exact.worth_it
    assert exact.later_epochs.reads_per_chunk < exact.first_epoch.reads_per_chunk
    assert slow.rows[0].later_epochs.reads_per_chunk == pytest.approx(64, rel=0.05)
    free = sentinel.data.forecast(tars, ["20%"], costs=SourceCosts(0, 1e9))
    assert free.verdict.startswith("not worth it")
    assert forecast_json(free)["verdict"] == free.verdict
    measured = measured_costs(open_data(tars))
    assert measured.latency_ns > 0


def test_what_plan_predicts_is_what_the_loader_reads(tars: list[str]) -> None:
    told = sentinel.data.forecast(tars, ["20%"], unit=64, costs=SourceCosts(1, 1))
    (row,) = (row for row in told.rows if row.order == "exact")
    loader = sentinel.data.loader(tars, batch_size=50, memory="20%", unit=64, collate_fn=len)
    for epoch in (row.first_epoch, row.later_epochs):
        for _ in loader:
            pass
        done = loader.report().epoch
        assert (done.source_reads, done.source_bytes, done.hits) == (epoch.source_reads, epoch.source_bytes, epoch.hits)
        assert done.direct_reads == epoch.direct_reads


@pytest.mark.parametrize("memory", ["5%", "20%", "90%"])
@pytest.mark.parametrize("latency_ns", [1.0, 20e3, 2e6])
def test_the_unit_that_plan_tells_is_the_loaders(
    tars: list[str], latency_ns: float, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = SourceCosts(latency_ns, 1e9, 4, measured=True)
    monkeypatch.setattr("sentinel.data.source_reads.measured_costs", lambda _: costs)
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: False)
    for workers in (0, 2):
        rows = sentinel.data.forecast(tars, [memory], workers=workers).rows
        for row in rows[1:]:
            loader = sentinel.data.loader(tars, batch_size=50, memory=memory, order=row.order, workers=workers)
            assert row.unit == loader.state_dict()["unit"], (row.order, workers)
            loader.close()


def test_plan_says_read_alone_where_all_is_in_the_page_cache(
    tars: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: True)
    told = sentinel.data.forecast(tars, ["20%"])
    (row,) = (row for row in told.rows if row.order == "exact")
    assert (row.unit, row.speedup, row.memory_bytes) == (ALONE, 1.0, 0)
    assert row.unit == sentinel.data.loader(tars, batch_size=50, memory="20%").state_dict()["unit"]
    assert any(CACHED in note for note in told.notes)
    assert main(["data", "plan", *tars, "--memory", "20%"]) == 0
    shown = capsys.readouterr().out
    assert "not worth it: all files are in the page cache" in shown
    assert shown.count("alone  ") == 2  # random access, and exact order
    declared = sentinel.data.forecast(tars, ["20%"], costs=SourceCosts(2e6, 1e9))
    assert "times as fast" in declared.verdict  # of a source elsewhere the page cache here tells nothing


def test_the_page_cache_is_asked_before_reads_fill_it(tars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("sentinel.data.source_reads.all_cached", lambda _: asked.append("cache"))
    monkeypatch.setattr("sentinel.data.source_reads.measured_costs", lambda _: asked.append("reads"))
    reads = SourceReads(open_data(tars))
    assert reads.known is None
    _ = reads.costs, reads.costs, reads.cached
    assert asked == ["cache", "reads"]


def test_plan_prices_what_auto_compares(tars: list[str]) -> None:
    """Reads of 64 samples take a fifth of the time here, but placing them and copying their samples takes the rest."""
    costs = SourceCosts(10e3, 1e10)
    (row,) = (row for row in sentinel.data.forecast(tars, ["20%"], unit=64, costs=costs).rows if row.order == "exact")
    later = row.later_epochs
    assert costs.ns(later.source_ranges, later.source_bytes) < costs.ns(later.samples, later.sample_bytes) / 2
    assert not row.worth_it
    (auto,) = (row for row in sentinel.data.forecast(tars, ["20%"], costs=costs).rows if row.order == "exact")
    assert auto.unit == ALONE


def test_run_delivers_epochs(tars: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "run", *tars, "--memory", "20%", "--unit", "64", "--epochs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["epochs"], found["direct_reads"]) == (1600, 1, 0)
    assert found["mixing"]["chunks_per_batch"] > 20
    assert sum(found["hits_by_tier"].values()) == found["hits"] > 0
    path = rows(tmp_path, 100)
    assert main(["data", "run", path, "--record", "uint8:10", "--order", "windowed", "--memory", "1MiB"]) == 0
    assert "samples/s over 2 epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "/nowhere.tar"], 1, "cannot be read"),
        (["run", "{}", "--memory", "4KiB", "--unit", "64"], 2, "give at least"),
        (["run", "{}", "--order", "exakt"], 2, "there is no order"),
        (["plan", "x.bin", "--record", "uint16"], 2, "names no shape"),
        (["plan", "{}", "--record", "uint17:3"], 2, "there is no dtype"),
    ],
)
def test_errors_are_one_line(
    tars: list[str], arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *(tars[0] if word == "{}" else word for word in arguments)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_forecast_without_memory_is_refused(tars: list[str]) -> None:
    with pytest.raises(UsageError, match="does not hold the largest"):
        sentinel.data.forecast(tars, ["4KiB"], costs=SourceCosts(1, 1))


def test_a_forecast_leaves_out_what_does_not_fit(tars: list[str]) -> None:
    told = sentinel.data.forecast(tars, ["4KiB", "20%"], costs=SourceCosts(1e6, 1e9))
    assert {row.memory for row in told.rows} == {"-", "20%"}
    assert any("memory 4KiB is left out: " in note for note in told.notes)
