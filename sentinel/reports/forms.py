"""The written forms of a report, by suffix. Each writes whole files and returns their paths."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import UsageError
from sentinel.files.disk import write_whole
from sentinel.reports.html.page import page
from sentinel.reports.perfetto import timeline

if TYPE_CHECKING:
    import pandas as pd

    from sentinel.reports.report import Report

VERSION = 1
"""Of the JSON form."""


def write_text(report: Report, path: Path) -> list[Path]:
    """The text."""
    return _written(path, report.text())


def write_html(report: Report, path: Path) -> list[Path]:
    """One page that needs no network."""
    return _written(path, page(report))


def write_json(report: Report, path: Path) -> list[Path]:
    """Headline, caveats, quality and all tables, each a list a column; unknown is null."""
    return _written(path, json.dumps(as_json(report), allow_nan=False) + "\n")


def write_csv(report: Report, path: Path) -> list[Path]:
    """`NAME.csv` with the headline, `NAME-TABLE.csv` for each table; an unknown value is an empty cell."""
    paths = _written(path, _headline_csv(report.headline))
    for name, table in report.frames().items():
        paths += _written(path.with_name(f"{path.stem}-{name}.csv"), table.to_csv(index=False))
    return paths


def write_trace(report: Report, path: Path) -> list[Path]:
    """Layers and migrations on a timeline for ui.perfetto.dev or chrome://tracing."""
    return _written(path, json.dumps(timeline(report), allow_nan=False) + "\n")


FORMS: dict[str, Callable[[Report, Path], list[Path]]] = {
    ".txt": write_text,
    ".html": write_html,
    ".json": write_json,
    ".csv": write_csv,
    ".trace": write_trace,
}


def form_of(path: str | os.PathLike[str]) -> Callable[[Report, Path], list[Path]]:
    """The form that the suffix of `path` names. Raises UsageError for another suffix."""
    target = Path(path)
    if target.suffix.lower() not in FORMS:
        raise UsageError(
            f"a report cannot be written as {target.name!r}", f"end the path in one of {', '.join(sorted(FORMS))}"
        )
    return FORMS[target.suffix.lower()]


def as_json(report: Report) -> dict[str, Any]:
    """The JSON form as a value; `pandas.DataFrame(value["frames"]["tensors"])` gives a table back."""
    run = report.run
    return {
        "format": "sentinel-report",
        "version": VERSION,
        "headline": report.headline,
        "caveats": report.caveats,
        "quality": dataclasses.asdict(report.profile.quality) if report.profile else None,
        "provenance": [{"noun": a, "made_from": b, "proved": c} for a, b, c in report.provenance],
        "counters": dict(sorted(run.counters.items())) if run else None,
        "events": [{"step": step, "text": text} for step, text in run.events] if run else None,
        "details": report.plan.details if report.plan else None,
        "script": report.setup.script,
        "frames": {name: _columns(table) for name, table in report.frames().items()},
    }


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return {str(name): table[name].astype(object).where(table[name].notna(), None).tolist() for name in table.columns}


def _headline_csv(headline: dict[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "value"])
    for name, value in headline.items():
        if isinstance(value, dict):
            writer.writerows([f"{name}.{key}", inner] for key, inner in value.items())
        else:
            writer.writerow([name, "" if value is None else value])
    return out.getvalue()


def _written(path: Path, text: str) -> list[Path]:
    write_whole(path, text.encode(errors="backslashreplace"))
    return [path]
