"""Tensors that are kept fast or slow by the user's word, and what that saves or costs a step."""

from __future__ import annotations

from sentinel.core.pins import kept_in
from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import Document, Section, TextTable

TITLE = "Kept where you said"
_MOST = 100
"""Rows; the others are in the plan, and in the JSON form."""


def _text(report: Document[Facts]) -> TextTable:
    plan = report.facts.plan
    told = [] if plan is None else kept_in(plan.details)
    if plan is None or not told:
        return TextTable(TITLE, ())
    rows = sorted(told, key=lambda row: (-row["slow_use_ns"], row["name"]))
    lines = [
        (
            row["name"],
            format_bytes(row["nbytes"]),
            f"{_verb(row, plan.tier_names[0])} {format_ns(row['slow_use_ns'])}",
        )
        for row in rows[:_MOST]
    ]
    rest = rows[_MOST:]
    if rest:
        lines.append((f"and {counted(len(rest), 'tensor')} more", format_bytes(sum(r["nbytes"] for r in rest)), ""))
    return TextTable(TITLE, [("tensor", "size", "predicted, a step"), *lines])


def _verb(row: dict[str, str], fast: str) -> str:
    return "kept fast, saves" if row["tier"] == fast else f"kept in {row['tier']}, costs"


PINS = Section[Facts](TITLE, text=_text, html=text_as_pairs(_text, TITLE))
