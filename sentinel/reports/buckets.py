"""The shapes that steps came in, and how each was served. There is a table only where there were several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sentinel.core.units import format_bytes, format_ns

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Shapes of the step, each with its plan"
HEADS = ("shape", "steps", "no slot", "other size", "from fast", "step, predicted", "step, applied", "taken over")


class BucketRow(NamedTuple):
    """One shape. `bucket`: its number, or "unknown" for steps of shapes that had no plan at the time. Bytes are those
    that its steps asked for: all, those that found no slot, those served where another size was planned. What follows
    is of its plan, and None where it is not known: times of a step, the median of those applied; the share of touched
    bytes that fast memory served; the budget and the most that was held; migrated bytes of all its steps, and how often
    its plan took over from another one within a step, which is part of them."""

    bucket: str
    steps: int
    asked_bytes: int
    missed_bytes: int
    fitted_bytes: int
    step_ns_predicted: int | None = None
    step_ns_applied: int | None = None
    fast_served_fraction: float | None = None
    fast_capacity_bytes: int | None = None
    fast_peak_bytes: int | None = None
    migrated_bytes: int | None = None
    taken_over: int | None = None


def text_rows(buckets: Sequence[BucketRow]) -> list[tuple[str, ...]]:
    """For a table of words, the heads of its columns first; empty without buckets."""
    if not buckets:
        return []
    return [HEADS, *(_words(row) for row in buckets)]


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


def frame(buckets: Sequence[BucketRow]) -> pd.DataFrame:
    """One row a bucket, the fields of BucketRow as columns; what is not known is <NA>."""
    import pandas as pd

    kinds = dict.fromkeys(BucketRow._fields, "Int64") | {"bucket": "string", "fast_served_fraction": "Float64"}
    return pd.DataFrame(list(buckets), columns=list(BucketRow._fields)).astype(kinds)
