"""The sums of a timeline beside those of the report that it was written with, each read from its file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.reports import Report
from tests.trace_events import Slice, Traced

ONCE = ("initial", "restore")
"""Reasons of migrations that belong to no step."""


Tables = dict[str, list[dict[str, Any]]]
"""Rows of each table of a report's JSON form."""


def written(report: Report, folder: Path) -> tuple[Path, Tables]:
    """The timeline's file, and the tables beside it."""
    (told,), (traced,) = report.write(folder / "r.json"), report.write(folder / "r.trace")
    return traced, tables_of(told)


def tables_of(told: Path) -> Tables:
    frames = json.loads(told.read_text())["frames"]
    return {
        name: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for name, columns in frames.items()
    }


def require_same_sums(traced: Traced, tables: Tables, process: str) -> None:
    """`process`: the one in the timeline that `tables` are about."""
    slices = [each for each in traced.slices if each.process == process]
    layers = [each for each in slices if each.thread == "layers"]
    moves = [each for each in slices if each.thread != "layers"]
    assert {each.category.partition(",")[0] for each in layers} == {"layer"}
    assert {each.category.partition(",")[0] for each in moves} <= {"migration"}
    _require_steps(layers, moves, tables["steps"])
    _require_layers(traced, layers, tables)
    _require_migrations(moves, tables["migrations"])


def _require_steps(layers: list[Slice], moves: list[Slice], steps: list[dict[str, Any]]) -> None:
    for step in steps:
        mine = [each for each in layers if each.args["step"] == step["step"]]
        assert sum(each.args["stall_ns"] for each in mine) == step["stall_ns"]
        assert sum(each.duration_ns for each in mine) <= step["duration_ns"]
        assert all(each.depth == 0 for each in mine), "layers follow one another"
        moved = [each for each in moves if each.args["step"] == step["step"] and each.args["reason"] not in ONCE]
        assert sum(each.args["moved_bytes"] for each in moved) == step["migrated_bytes"]


def _require_layers(traced: Traced, layers: list[Slice], tables: Tables) -> None:
    """What the report has of a layer is the median of the steps that ran as planned."""
    steady = {step["step"] for step in tables["steps"] if step["in_step"]}
    held = {(each.process, each.at_ns): each.value for each in traced.counts if each.counter == "bytes held fast"}
    for row in tables["layers"]:
        mine = [each for each in layers if each.args["layer"] == row["layer"] and each.args["step"] in steady]
        assert mine, row
        assert {each.category for each in mine} == {f"layer,{row['phase']}" if row["phase"] else "layer"}
        assert int(np.median([each.duration_ns for each in mine])) == row["duration_ns"], row
        assert int(np.median([each.args["stall_ns"] for each in mine])) == row["stall_ns"]
        assert int(np.median([held[each.process, each.start_ns] for each in mine])) == row["fast_bytes"]


def _require_migrations(moves: list[Slice], rows: list[dict[str, Any]]) -> None:
    seen, told = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for each in moves:
        key = (each.thread, each.category, each.args["outcome"], each.args["reason"])
        _add(seen, key, each.args["nbytes"], each.args["moved_bytes"], each.duration_ns)
    for row in rows:
        key = (f"{row['source']} → {row['target']}", f"migration,{row['outcome']}", row["outcome"], row["reason"])
        took_ns = 0 if row["outcome"] == "skipped" else row["stop_ns"] - row["start_ns"]  # it never started
        _add(told, key, row["nbytes"], row["moved_bytes"], took_ns)
    assert seen == told


def _add(sums: Counter[tuple[Any, ...]], key: tuple[Any, ...], nbytes: int, moved_bytes: int, took_ns: int) -> None:
    for what, amount in (("count", 1), ("nbytes", nbytes), ("moved", moved_bytes), ("ns", took_ns)):
        sums[*key, what] += amount
