"""The migrations of the run, or of the plan where nothing ran: a table, sums by direction, one step on a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES, REASONS
from sentinel.core.units import counted, format_bytes
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, whole, words
from sentinel.reports.headline import began
from sentinel.reports.html.lanes import lanes
from sentinel.reports.html.svg import tag
from sentinel.reports.html.tables import Column, plain, table
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "Migrations"
MAX_KEYS = 8
"""Of one move of a block of many tensors."""
_KEYS = ["source", "target", "reason", "outcome"]


def _frame(facts: Facts) -> pd.DataFrame:
    """One row a migration of the run; without a run, the planned ones, times and outcome unknown."""
    run, plan, names = facts.run, facts.plan, facts.names
    if run is None:
        return _planned(plan, names)
    rows = run.migrations
    return pd.DataFrame(
        {
            "step": whole(rows["step"]),
            "layer": whole(rows["layer"]),
            "block": whole(rows["block"]),
            "tensor": _tensor_of(rows["block"], plan, names),
            "source": of_names(run.tier_names, rows["source"]),
            "target": of_names(run.tier_names, rows["target"]),
            "nbytes": whole(rows["nbytes"]),
            "moved_bytes": whole(rows["moved_bytes"]),
            "reason": of_names(REASONS, rows["reason"].astype(np.int64)),
            "start_ns": whole(rows["start_ns"], began(run, rows)),
            "stop_ns": whole(rows["stop_ns"], began(run, rows) | (rows["stop_ns"] != 0)),  # 0 in runs of before
            "outcome": of_names(OUTCOMES, rows["outcome"].astype(np.int64)),
            "errno": whole(rows["errno"], rows["errno"] != 0),
        }
    )


def _planned(plan: Plan | None, names: Sequence[str]) -> pd.DataFrame:
    moves = plan.migrations if plan else ()
    tiers = plan.tier_names if plan else ()
    block = np.array([m.block for m in moves], np.int64)
    unknown = whole(np.zeros(len(moves), np.int64), False)
    return pd.DataFrame(
        {
            "step": unknown,
            "layer": whole([m.start for m in moves]),
            "block": whole(block),
            "tensor": _tensor_of(block, plan, names),
            "source": of_names(tiers, np.array([m.source for m in moves], np.int64)),
            "target": of_names(tiers, np.array([m.target for m in moves], np.int64)),
            "nbytes": whole([m.nbytes for m in moves]),
            "moved_bytes": unknown,
            "reason": words(m.reason for m in moves),
            "start_ns": unknown,
            "stop_ns": unknown,
            "outcome": words(None for _ in moves),
            "errno": unknown,
        }
    )


def _tensor_of(block: NDArray[Any], plan: Plan | None, names: Sequence[str]) -> Any:
    """The one tensor of each block; <NA> for a block of several."""
    held = [b.tensors for b in plan.blocks] if plan else []
    one = np.array([t[0] if len(t) == 1 and t[0] < len(names) else -1 for t in held] or [-1], np.int64)
    return of_names(names, one[block] if held else np.full(len(block), -1, np.int64))


def _text(report: Document[Facts]) -> TextTable:
    frame = report.tables["migrations"]
    if not len(frame):
        return NO_TEXT
    rows = [("direction", "reason", "outcome", "count", "to move", "moved")]
    for row in _sums(frame).astype(object).to_dict("records"):
        known = not pd.isna(row["outcome"])
        rows.append(
            (
                *(f"{row['source']} → {row['target']}", str(row["reason"]), row["outcome"] if known else "planned"),
                *(str(row["count"]), format_bytes(row["nbytes"]), format_bytes(row["moved"]) if known else ""),
            )
        )
    return TextTable(f"{TITLE}, {_when(report)}", rows)


def _html(report: Document[Facts]) -> str:
    frame = report.tables["migrations"]
    if not len(frame):
        return tag("p", "The plan has no migrations.", class_="note") if report.facts.plan is not None else ""
    columns: list[Column] = [
        ("source", "from", str),
        ("target", "to", str),
        ("reason", "reason", str),
        ("outcome", "outcome", str),
        ("count", "count", plain),
        ("nbytes", "bytes to move", format_bytes),
        ("moved", "bytes moved", format_bytes),
    ]
    return table(_sums(frame), columns, f"{TITLE} {_when(report)}")


def _sums(frame: pd.DataFrame) -> pd.DataFrame:
    """By direction, reason and outcome: how many, bytes to move, and bytes moved, unknown where nothing ran."""
    grouped = frame.groupby(_KEYS, dropna=False, sort=True)
    sums = grouped.agg(count=("nbytes", "size"), nbytes=("nbytes", "sum"), moved=("moved_bytes", "sum")).reset_index()
    sums["count"] = sums["count"].astype("Int64")
    if frame["moved_bytes"].isna().all():
        sums["moved"] = sums["moved"].where(sums["moved"].isna())
    return sums


def _when(report: Document[Facts]) -> str:
    """Of how many steps the rows are, those included that moved nothing; or that nothing ran."""
    steps = report.facts.headline["steps"]
    return f"over {counted(steps, 'step')}" if steps else "planned for each step"


def _timeline(report: Document[Facts]) -> str:
    facts = report.facts
    if facts.run is None or not facts.layers:
        return ""
    return lanes(facts.run, facts.plan, facts.layers, lambda block: keys_of(facts, block))


def keys_of(facts: Facts, block: int) -> str:
    """The groups of like tensors that lie in a block, as what a click marks; "" where that is not known."""
    if facts.plan is None or facts.profile is None:
        return ""
    groups = facts.alike.of[list(facts.plan.blocks[block].tensors)]
    return " ".join(str(group) for group in np.unique(groups).tolist()[:MAX_KEYS])


MIGRATIONS = Section[Facts](TITLE, "migrations", _frame, _text, _html)
TIMELINE = Section[Facts]("Migrations on a timeline", html=_timeline)
