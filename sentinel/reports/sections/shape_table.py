"""The shapes that steps came in, and how each was served. There is a table only where there were several."""

from __future__ import annotations

import pandas as pd

from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable
from sentinel.reports.setup import BucketRow

TITLE = "Shapes of the step, each with its plan"
HEADS = ("shape", "steps", "no slot", "other size", "from fast", "step, predicted", "step, applied", "taken over")


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a shape, the fields of BucketRow as columns; what is not known is <NA>."""
    if not facts.setup.buckets:
        return None
    kinds = dict.fromkeys(BucketRow._fields, "Int64") | {"bucket": "string", "fast_served_fraction": "Float64"}
    return pd.DataFrame(list(facts.setup.buckets), columns=list(BucketRow._fields)).astype(kinds)


def _text(report: Document[Facts]) -> TextTable:
    rows = report.facts.setup.buckets
    return TextTable(TITLE, [HEADS, *(_words(row) for row in rows)]) if rows else NO_TEXT


def _words(row: BucketRow) -> tuple[str, ...]:
    asked = max(row.asked_bytes, 1)
    return (
        row.bucket,
        str(row.steps),
        f"{row.missed_bytes / asked:.1%} of {format_bytes(row.asked_bytes)}",
        f"{row.fitted_bytes / asked:.1%}",
        "" if row.fast_served_fraction is None else f"{row.fast_served_fraction:.1%}",
        "" if row.step_ns_predicted is None else format_ns(row.step_ns_predicted),
        "" if row.step_ns_applied is None else format_ns(row.step_ns_applied),
        "" if row.taken_over is None else f"{row.taken_over} times",
    )


SHAPES = Section[Facts](TITLE, "buckets", _frame, _text, text_as_pairs(_text, TITLE))
