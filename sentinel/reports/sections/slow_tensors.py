"""Which tensors hurt: the time that a step loses because they are used from slower memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sentinel.core.trace import ROLES
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.alike import by_alike
from sentinel.reports.caveats import busy
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, records, whole, words
from sentinel.reports.html.part_bars import Ranked, ranked_bars
from sentinel.reports.html.svg import breakable, escape, tag
from sentinel.reports.html.tables import Column, table
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Which tensors hurt"
TOP, BARS, ROWS = 10, 8, 200
"""Groups of like tensors in the text, as bars of the page, and in its table."""


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a tensor that slower memory serves at least in part, as planned, the one that loses most first."""
    slow, profile = facts.slow_accesses, facts.profile
    if slow is None or profile is None:
        return None
    loses = np.zeros(len(profile.names)) if slow.ns is None else slow.ns
    some = np.flatnonzero(slow.nbytes >= 1)
    order = some[np.lexsort((some, -slow.nbytes[some], -loses[some]))]
    group = facts.alike.of[order]
    return pd.DataFrame(
        {
            "tensor": of_names(profile.names, order),
            "alike": of_names(facts.alike.names, group),
            "role": of_names(ROLES, profile.tensors["role"][order].astype(np.int64)),
            "nbytes": whole(profile.tensors["nbytes"][order]),
            "slow_bytes": whole(np.rint(slow.nbytes[order])),
            "slow_ns": whole(np.rint(loses[order]), slow.ns is not None),
            "made_at": words(profile.sources[i] if profile.sources else None for i in order.tolist()),
        }
    )


def _groups(facts: Facts, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` by like tensors, those that lose most first."""
    return by_alike(frame, facts.names, facts.alike).sort_values(["slow_ns", "slow_bytes"], ascending=False)


def _cost(group: Any) -> str:
    return format_bytes(group.slow_bytes) if group.slow_ns is None else format_ns(group.slow_ns)


def _answer(found: list[Any], facts: Facts) -> str:
    """`found`: the records of `_groups`."""
    worst, known = found[0], found[0].slow_ns is not None
    total = sum(group.slow_ns or 0 for group in found) if known else sum(group.slow_bytes for group in found)
    part = ((worst.slow_ns or 0) if known else worst.slow_bytes) / (total or 1)
    said = f"loses {_cost(worst)} a step" if known else f"has {_cost(worst)} a step touched in slower memory"
    all_told = (format_ns(total) + _of_a_step(total, facts)) if known else format_bytes(total)
    what = "all such time" if known else "all such bytes"
    told = f"{worst.label} ({worst.role}) {said}, {part:.0%} of {what} ({all_told}), since slower memory serves it."
    return told + (_waits(total, facts) if known else "")


def _of_a_step(ns: int, facts: Facts) -> str:
    """How much of a step that is; "" where it is not known, or the host was busy."""
    h = facts.headline
    step = h["step_ns_applied"] if h["step_ns_applied"] is not None else h["step_ns_predicted"]
    return f", {ns / step:.1%} of a step" if step and not busy(h) else ""


def _waits(slow_ns: int, facts: Facts) -> str:
    """That tensors cost more by being waited for, where they do: who looks for what hurts looks here."""
    waited = facts.moves.waited_ns if facts.moves is not None else None
    if waited is None or waited.sum() <= slow_ns:
        return ""
    of_group = np.bincount(facts.alike.of, waited)
    most = int(of_group.argmax())
    cost = f"{format_ns(waited.sum())} a step in the mean, {format_ns(of_group[most])} of it for"
    return f" Waits for moves cost more: {cost} {facts.alike.label(most)}; what moved is below."


def _text(report: Document[Facts]) -> TextTable:
    frame = report.tables.get("slow_tensors")
    found = [] if frame is None else records(_groups(report.facts, frame))
    if not found:
        return NO_TEXT
    rows = [("lost a step", "touched there", "role", "tensor", "made at")]
    for group in found[:TOP]:
        lost = "unknown" if group.slow_ns is None else format_ns(group.slow_ns)
        rows.append((lost, format_bytes(group.slow_bytes), group.role, group.label, group.made_at or ""))
    if not any(group.made_at for group in found[:TOP]):
        rows = [row[:-1] for row in rows]  # type: ignore[misc]
    model = "" if found[0].slow_ns is None else "; times by the machine's figures, as planned"
    return TextTable(f"{TITLE} ({min(len(found), TOP)} of {len(found)}, similar ones as one row{model})", rows)


def _html(report: Document[Facts]) -> str:
    frame = report.tables.get("slow_tensors")
    if frame is None:
        return ""
    groups = _groups(report.facts, frame)
    found, shown = records(groups), groups.head(ROWS)
    if not found:
        return tag("p", "None: fast memory serves all that the step touches.", class_="answer")
    known = found[0].slow_ns is not None
    bars = [
        Ranked(
            str(group.key),
            group.label,
            group.slow_ns if known else group.slow_bytes,
            _cost(group),
            group.made_at or "",
        )
        for group in found[:BARS]
    ]
    columns: list[Column] = [
        ("label", "tensors", str),
        ("slow_ns", "lost a step", format_ns),
        ("slow_bytes", "touched in slower memory", format_bytes),
        ("nbytes", "bytes", format_bytes),
        ("role", "role", str),
        ("made_at", "made at", str),
    ]
    if not shown["made_at"].notna().any():
        columns.pop()
    keys = shown["key"].astype(str).tolist()
    whole_table = table(shown, columns, "Tensors by time lost", total=len(found), keys=keys)
    model = "Time lost is how much longer slower memory takes than fast memory, by the machine's figures, as planned. "
    note = (model if known else "") + "Click a name to mark it in every picture and table; Esc clears the mark."
    return (
        tag("p", breakable(_answer(found, report.facts)), class_="answer")
        + ranked_bars(bars, "slow", "Tensors by time lost in slower memory")
        + tag("p", escape(note), class_="note")
        + f"<details><summary>All {len(found):,} as a table</summary>{whole_table}</details>"
    )


SLOW_TENSORS = Section[Facts](TITLE, "slow_tensors", _frame, _text, _html)
