"""The timeline says what the report says, to a reader that takes it by the format's rules and as Perfetto does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sentinel.core.run import Run
from sentinel.reports import build_report
from sentinel.reports.html.page import page
from tests.trace_events import Traced, read
from tests.trace_sums import require_same_sums, written
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED, executed


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


@pytest.mark.parametrize("share", [1.0, 0.7310585786300049, 1.9283746, 123.456789])
def test_the_sums_of_the_timeline_are_those_of_the_report(share: float, tmp_path: Path) -> None:
    """Of a step that was run, and of the one beside it that was simulated."""
    ran, predicted = at_odd_times(executed(), share), at_odd_times(SIMULATED, share / 3)
    both = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, executed=ran, simulated=predicted)
    traced, tables = written(both, tmp_path)
    assert len(tables["migrations"]) > 10
    require_same_sums(traced, tables, "emulated")
    simulated = build_report(profile=PROFILE, plan=PLAN, machine=MACHINE, simulated=predicted)
    require_same_sums(traced, written(simulated, tmp_path)[1], "simulated")
    for step in tables["steps"]:  # simulated layers leave no time between them
        mine = [each for each in traced.slices if each.args["step"] == step["step"] and each.process == "emulated"]
        assert sum(each.duration_ns for each in mine if each.thread == "layers") == step["duration_ns"]


def test_a_profile_alone_is_a_timeline_of_its_layers(tmp_path: Path) -> None:
    profile = dataclasses.replace(PROFILE, layer_ns=np.arange(8, dtype=np.int64) * 1001 + 7)
    traced, tables = written(build_report(profile=profile), tmp_path)
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
    named = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "p"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "t"}},
    ]
    path = folder / "some.trace"
    path.write_text(json.dumps({"traceEvents": [*named, *({"pid": 1, "tid": 1, **event} for event in events)]}))
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
