"""The written forms of a report, by suffix. Each writes whole files and returns their paths."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import UsageError
from sentinel.files.disk import remove, write_whole
from sentinel.reports.html.page import page
from sentinel.reports.section import Document, Frames, tables_of
from sentinel.reports.text import text_of

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "sentinel-report", 1
"""Of the JSON form."""


def write_text(document: Document[Any], path: Path) -> list[Path]:
    """The text."""
    return _written(path, text_of(document))


def write_html(document: Document[Any], path: Path) -> list[Path]:
    """One page that needs no network."""
    return _written(path, page(document))


def write_json(document: Document[Any], path: Path) -> list[Path]:
    """Headline, caveats, quality and all tables, each a list a column; unknown is null."""
    return _written(path, json.dumps(as_json(document), allow_nan=False) + "\n")


def write_csv(document: Document[Any], path: Path) -> list[Path]:
    """`NAME.csv` with the headline, `NAME-TABLE.csv` for each table; an unknown value is an empty cell. What an earlier
    report has left of tables that this one lacks is removed."""
    paths = _written(path, _headline_csv(document.values().get("headline", {})))
    for name, table in document.tables.items():
        paths += _written(_table_path(path, name), table.to_csv(index=False))
    for section in document.sections:
        if section.table and section.table not in document.tables:
            remove(_table_path(path, section.table))
    return paths


def _table_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}-{name}.csv")


def write_trace(document: Document[Any], path: Path) -> list[Path]:
    """A timeline for ui.perfetto.dev or chrome://tracing. Raises UsageError if the report has none."""
    timeline = document.timeline()
    if timeline is None:
        raise UsageError(f"a {document.heading.name} has no timeline", "end the path in .html, .json, .csv or .txt")
    # Perfetto shows an escaped → in the name of a track as \u2192, and refuses a file with an escaped emoji.
    return _written(path, json.dumps(timeline, allow_nan=False, ensure_ascii=False) + "\n")


FORMS: dict[str, Callable[[Document[Any], Path], list[Path]]] = {
    ".txt": write_text,
    ".html": write_html,
    ".json": write_json,
    ".csv": write_csv,
    ".trace": write_trace,
}


def write(document: Document[Any], path: str | os.PathLike[str]) -> list[Path]:
    """Write `document` in the form that the suffix names; returns the paths written.

    Raises UsageError for another suffix, FormatError if the file cannot be written.
    """
    return form_of(path)(document, Path(path))


class Written:
    """What reports have alike: the tables of their sections, and a method for each way to get at them."""

    @cached_property
    def tables(self: Document[Any]) -> dict[str, pd.DataFrame]:
        """The tables of its sections by name."""
        return tables_of(self.sections, self.facts)

    def frames(self: Document[Any]) -> Frames:
        """Tables by name. Columns are nullable: <NA> is unknown. `tensor` is the unique name. A table of which nothing
        is known is absent."""
        return dict(self.tables)

    def timeline(self) -> dict[str, Any] | None:
        """See Document: it has none."""
        return None

    def text(self: Document[Any]) -> str:
        """The report for a terminal."""
        return text_of(self)

    def write(self: Document[Any], path: str | os.PathLike[str]) -> list[Path]:
        """Write the report in the form that the suffix names; returns the paths written.

        `.txt` the text; `.html` one page that needs nothing else; `.json` headline, caveats and all tables;
        `.csv` one file a table, `NAME-tensors.csv` and so on beside `NAME.csv`, which holds the headline;
        `.trace` a timeline for ui.perfetto.dev. Raises UsageError for another suffix, and where there is no timeline;
        FormatError if the file cannot be written.
        """
        return write(self, path)


def form_of(path: str | os.PathLike[str]) -> Callable[[Document[Any], Path], list[Path]]:
    """The form that the suffix of `path` names. Raises UsageError for another suffix."""
    target = Path(path)
    if target.suffix.lower() not in FORMS:
        raise UsageError(
            f"a report cannot be written as {target.name!r}", f"end the path in one of {', '.join(sorted(FORMS))}"
        )
    return FORMS[target.suffix.lower()]


def as_json(document: Document[Any]) -> dict[str, Any]:
    """The JSON form as a value; `pandas.DataFrame(value["frames"]["tensors"])` gives a table back."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **document.values(),
        "frames": {name: _columns(table) for name, table in document.tables.items()},
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
