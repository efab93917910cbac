"""What more fast memory would bring: predicted steps of this profile with other amounts of it."""

from __future__ import annotations

import pandas as pd

from sentinel.core.units import PAGE_BYTES, format_bytes, format_ns
from sentinel.planner.sweep import KNEE_SHARE, Point
from sentinel.reports.facts import Facts
from sentinel.reports.fast_memory_points import FastMemoryPoints
from sentinel.reports.frame_columns import whole, words
from sentinel.reports.html.memory_curve import memory_curve
from sentinel.reports.html.svg import coded, escape, tag
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "What more fast memory would bring"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row an amount of fast memory, all of it simulated. `speed`: all-fast time over this step's."""
    found = facts.fast_memory_points
    if found is None:
        return None
    return pd.DataFrame(
        {
            "fast": words(point.fast for point in found.points),
            "fast_bytes": whole([point.fast_bytes for point in found.points]),
            "step_ns": whole([point.step_ns or 0 for point in found.points]),
            "speed": pd.array([round(point.speed or 0.0, 4) for point in found.points], "Float64"),
            "mark": words(", ".join(marks(found, point.fast_bytes)) for point in found.points),
        }
    )


def marks(found: FastMemoryPoints, fast_bytes: int) -> list[str]:
    """What that amount is to who asks."""
    told = ["you are here"] if fast_bytes == found.here.fast_bytes else []
    told += ["knee"] if found.knee is not None and fast_bytes == found.knee.fast_bytes else []
    if found.twice is not None and fast_bytes == found.twice.fast_bytes:
        told.append("twice" if _is_double(found.here, found.twice) else "all of the step")
    return told


def _is_double(here: Point, more: Point) -> bool:
    """Whether `more` is twice as much; where the step cannot use that, it is all that the step uses."""
    return more.fast_bytes > 2 * here.fast_bytes - PAGE_BYTES


def _answer(found: FastMemoryPoints) -> str:
    here, twice, knee = found.here, found.twice, found.knee
    told = f"You are here: {format_bytes(here.fast_bytes)}, {here.speed or 0:.0%} of all-fast speed (simulated)."
    if twice is not None and twice is not here:
        gain = (here.step_ns or 0) / (twice.step_ns or 1) - 1
        brings = f"{gain:+.0%} speed" if round(gain, 2) else "next to nothing"
        amount = "Twice as much" if _is_double(here, twice) else "All that the step uses"
        told += f" {amount}, {format_bytes(twice.fast_bytes)}, would bring {brings}."
    if knee is not None and knee.fast_bytes <= here.fast_bytes:
        if knee.fast_bytes < here.fast_bytes:
            told += f" {format_bytes(knee.fast_bytes)} would be enough for {KNEE_SHARE:.0%}."
    elif knee is not None and knee.fast_bytes < found.subject.footprint_bytes:
        told += f" {format_bytes(knee.fast_bytes)} ({knee.fast} of the footprint) are enough for {KNEE_SHARE:.0%}."
    elif found.whole:
        told += f" No amount tried below the whole footprint reaches {KNEE_SHARE:.0%}."
    return told


def _text(report: Document[Facts]) -> TextTable:
    found = report.facts.fast_memory_points
    if found is None:
        return NO_TEXT
    rows = [("fast memory", "of the footprint", "step", "of all-fast speed", "")]
    for point in found.points:
        mark = ", ".join(marks(found, point.fast_bytes))
        size, step = format_bytes(point.fast_bytes), format_ns(point.step_ns or 0)
        rows.append((size, point.fast, step, f"{point.speed or 0:.1%}", mark))
    return TextTable(f"{TITLE} (simulated)", rows)


def _html(report: Document[Facts]) -> str:
    found = report.facts.fast_memory_points
    if found is None:
        return _without(report.facts)
    note = "Predicted: the same policy planned this profile again after the run. None of these plans was run."
    if not found.whole:
        note += " Planning takes long for this step, so few amounts were tried; `sentinel compare` tries more."
    return (
        tag("p", escape(_answer(found)), class_="answer")
        + memory_curve(found, lambda nbytes: ", ".join(marks(found, nbytes)))
        + tag("p", escape(note), class_="note")
    )


def _without(facts: Facts) -> str:
    """Why there is no curve, where a reader would look for it."""
    plan = facts.plan
    if plan is None or facts.machine is None:
        return ""
    if plan.capacity_bytes[0] >= plan.footprint_bytes:
        return tag("p", "Nothing: all tensors of the step fit into fast memory already.", class_="answer")
    if not facts.setup.more_plans_s:
        later = (
            "Not planned yet: a report made after `sentinel.stop()`, and the last report of `sentinel run`, show it."
        )
        return tag("p", coded(later), class_="answer") if facts.executed is not None else ""
    why = "Planning takes too long for this step to be tried here; `sentinel compare` of a saved profile does."
    return tag("p", coded(why), class_="answer")


MORE_FAST_MEMORY = Section[Facts](TITLE, "fast_memory_curve", _frame, _text, _html)
