"""What moved and why: of each tensor that migrates, how often, how far hidden, and for which layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.alike import by_alike
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, records, whole, words
from sentinel.reports.html.part_bars import Ranked, ranked_bars
from sentinel.reports.html.svg import breakable, tag
from sentinel.reports.html.tables import Column, table
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable

TITLE = "What moved, and why"
TOP, BARS, ROWS = 10, 6, 200
"""Groups of like tensors in the text, as bars of the page, and in its table."""


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a tensor that moves, in the mean of a step, the one of most bytes first."""
    moves, profile, plan = facts.moves, facts.profile, facts.plan
    if moves is None or profile is None or plan is None:
        return None
    some = np.flatnonzero(moves.out + moves.back > 0)
    order = some[np.lexsort((some, -moves.nbytes[some]))]
    why = _reasons(profile, plan, order)
    ran = moves.ns is not None
    times = {"moving_ns": moves.ns, "waited_ns": moves.waited_ns}
    return pd.DataFrame(
        {
            "tensor": of_names(profile.names, order),
            "alike": of_names(facts.alike.names, facts.alike.of[order]),
            "out": pd.array(moves.out[order].round(3), "Float64"),
            "back": pd.array(moves.back[order].round(3), "Float64"),
            "moved_bytes": whole(np.rint(moves.nbytes[order])),
            **{name: whole(np.rint(order if ns is None else ns[order]), ran) for name, ns in times.items()},
            "late": pd.array([None] * len(order) if moves.late is None else moves.late[order].round(3), "Float64"),
            "why": words(why),
        }
    )


def _reasons(profile: Profile, plan: Plan, tensors: NDArray[np.int64]) -> list[str]:
    """Of each tensor: for which layer it is brought, and after which one it makes room, of its first such moves."""
    blocks, moves = plan.block_columns, plan.move_columns
    names = [str(layer) for layer in plan.layers]
    block_of = np.full(len(profile.names), -1, np.int64)
    movable = np.isin(blocks.owner, moves.block)
    block_of[blocks.tensors[movable][::-1]] = blocks.owner[movable][::-1]
    brought: dict[int, int] = {}
    left: dict[int, int] = {}
    for block, source, target, start, due in zip(
        *(column.tolist() for column in (moves.block, moves.source, moves.target, moves.start, moves.due)), strict=True
    ):
        if target < source:
            brought.setdefault(block, due % plan.n_layers)
        else:
            left.setdefault(block, start)
    found = []
    for block in block_of[tensors].tolist():
        told = [f"back for {names[brought[block]]}"] if block in brought else []
        told += [f"out from {names[left[block]]} on, to make room"] if block in left else []
        found.append("; ".join(told))
    return found


def _groups(facts: Facts, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` by like tensors, those of most bytes first."""
    return by_alike(frame, facts.names, facts.alike).sort_values("moved_bytes", ascending=False, kind="stable")


def _hidden(group: Any) -> str:
    if group.moving_ns is None:
        return "unknown"
    if not group.moving_ns:
        return "took no time"
    told = f"{1 - min(group.waited_ns / group.moving_ns, 1):.0%} hidden"
    return told if not group.waited_ns else f"{told}, {format_ns(group.waited_ns)} waited"


def _times(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _answer(found: list[Any], late: float | None) -> str:
    """`found`: the records of `_groups`. `late`: moves of all blocks that came late in the mean of a step; None where
    nothing ran."""
    nbytes, waited = sum(group.moved_bytes for group in found), sum(group.waited_ns or 0 for group in found)
    most = found[0]
    why = f" ({most.why})" if most.why else ""
    first = f"most of all {most.label}: {format_bytes(most.moved_bytes)}{why}."
    if late is None:
        return f"{format_bytes(nbytes)} are to move in a step, {first}"
    when = f"{_times(late)} of these moves came late" if late else "none of these moves came late"
    cost = f"layers waited {format_ns(waited)} for them" if waited else "no layer waited for them"
    return f"In the mean of a step {format_bytes(nbytes)} moved, {first} In that mean {when}, and {cost}."


def _text(report: Document[Facts]) -> TextTable:
    frame = report.tables.get("moved_tensors")
    found = [] if frame is None else records(_groups(report.facts, frame))
    if not found:
        return NO_TEXT
    rows = [("bytes a step", "out", "back", "late", "behind the layers", "tensor", "why")]
    for group in found[:TOP]:
        late = "unknown" if group.late is None else _times(group.late)
        figures = (format_bytes(group.moved_bytes), _times(group.out), _times(group.back), late, _hidden(group))
        rows.append((*figures, group.label, group.why or ""))
    mean = "" if found[0].late is None else "; in the mean of a step"
    return TextTable(f"{TITLE} ({min(len(found), TOP)} of {len(found)}, similar ones as one row{mean})", rows)


def _html(report: Document[Facts]) -> str:
    frame = report.tables.get("moved_tensors")
    if frame is None:
        return ""
    moves, groups = report.facts.moves, _groups(report.facts, frame)
    found = records(groups)
    if moves is None or not found:
        return tag("p", "Nothing: the plan moves no tensor within a step.", class_="answer")
    bars = []
    for group in found[:BARS]:
        told = f"{format_bytes(group.moved_bytes)}, {_hidden(group)}"
        bars.append(Ranked(str(group.key), group.label, group.moved_bytes, told, group.why or ""))
    shown = groups.head(ROWS).round({"out": 1, "back": 1, "late": 1})
    columns: list[Column] = [
        ("label", "tensors", str),
        ("moved_bytes", "bytes a step", format_bytes),
        ("out", "out a step", _times),
        ("back", "back a step", _times),
        ("late", "late a step", _times),
        ("moving_ns", "moving a step", format_ns),
        ("waited_ns", "waited for", format_ns),
        ("why", "why (of the first)", str),
    ]
    keys = shown["key"].astype(str).tolist()
    whole_table = table(shown, columns, "Tensors by bytes moved", total=len(found), keys=keys)
    return (
        tag("p", breakable(_answer(found, moves.all_late)), class_="answer")
        + ranked_bars(bars, "hidden", "Tensors by bytes moved a step")
        + f"<details><summary>All {len(found):,} as a table</summary>{whole_table}</details>"
    )


MOVED_TENSORS = Section[Facts](TITLE, "moved_tensors", _frame, _text, _html)
