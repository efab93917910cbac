"""Who moved which pages of the managed memory, by the witness, beside what the engine claims."""

from __future__ import annotations

import pandas as pd

from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.reports import who_moved
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Who moved what (pages of managed memory, by an independent witness)"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """who, node, pages, nbytes: a row each; None without a witness."""
    if who_moved.witness_pages(facts.executed) is None:
        return None
    found = who_moved.rows(facts.executed)
    table = pd.DataFrame(
        {
            "who": pd.array([who for who, _, _ in found], "string"),
            "node": pd.array([node for _, node, _ in found], "Int64"),
            "pages": pd.array([pages for _, _, pages in found], "Int64"),
        }
    )
    table["nbytes"] = table["pages"] * PAGE_BYTES
    return table


def _text(report: Document[Facts]) -> TextTable:
    """(who, pages and bytes, node), with the verdict last."""
    verdict = who_moved.verdict(report.facts.executed)
    if not verdict:
        return NO_TEXT
    rows = [
        (who, f"{pages:,} pages, {format_bytes(pages * PAGE_BYTES)}", f"to node {node}")
        for who, node, pages in who_moved.rows(report.facts.executed)
    ]
    return TextTable(TITLE, [*rows, ("verdict", verdict, "")])


def _html(report: Document[Facts]) -> str:
    rows = _text(report).rows
    return pairs(rows, TITLE) if rows else ""


WITNESS = Section[Facts]("Who moved what", "who_moved", _frame, _text, _html)
