"""What the plan does not cover: tensors that stayed in place, and allocations that fell back to malloc."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from sentinel.core.units import format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import whole, words
from sentinel.reports.html.tables import Column, table
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TOP = 10
"""Rows of the text; its title says of how many."""
_IN_PLACE = "Stayed in place"
_UNMANAGED = "Fell back to malloc, all allocations added up"
_TENSOR: Column = ("tensor", "tensor", str)
_NBYTES: Column = ("nbytes", "bytes", format_bytes)
_REASON: Column = ("reason", "reason", str)


def _in_place(facts: Facts) -> pd.DataFrame:
    """What stayed where the framework had put it."""
    rows = facts.setup.in_place
    return pd.DataFrame(
        {
            "tensor": pd.array([name for name, _, _ in rows], dtype="string"),
            "nbytes": whole([nbytes for _, nbytes, _ in rows]),
            "reason": words(reason for _, _, reason in rows),
        }
    )


def _unmanaged(facts: Facts) -> pd.DataFrame:
    """What fell back to malloc, by reason."""
    rows = sorted(facts.setup.unmanaged.items(), key=lambda row: (-row[1], row[0]))
    return pd.DataFrame(
        {"reason": words(reason for reason, _ in rows), "nbytes": whole([nbytes for _, nbytes in rows])}
    )


def _text_of(name: str, title: str) -> Callable[[Document[Facts]], TextTable]:
    def text(report: Document[Facts]) -> TextTable:
        table = report.tables[name]
        if not len(table):
            return NO_TEXT
        largest = table.sort_values("nbytes", ascending=False, kind="stable").head(TOP)
        rows = []
        for row in largest.to_dict("records"):
            named = [str(row["tensor"])] if "tensor" in row else []
            rows.append((format_bytes(row["nbytes"]), str(row["reason"]), *named))
        return TextTable(f"{title} ({len(largest)} of {len(table)})", rows)

    return text


def _html_of(name: str, title: str, columns: list[Column]) -> Callable[[Document[Facts]], str]:
    def html(report: Document[Facts]) -> str:
        frame = report.tables[name]
        return table(frame.sort_values("nbytes", ascending=False), columns, title) if len(frame) else ""

    return html


IN_PLACE = Section[Facts](
    _IN_PLACE,
    "in_place",
    _in_place,
    _text_of("in_place", _IN_PLACE),
    _html_of("in_place", _IN_PLACE, [_TENSOR, _NBYTES, _REASON]),
)
UNMANAGED = Section[Facts](
    _UNMANAGED,
    "unmanaged",
    _unmanaged,
    _text_of("unmanaged", _UNMANAGED),
    _html_of("unmanaged", _UNMANAGED, [_REASON, _NBYTES]),
)
