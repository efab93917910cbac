"""The migrations of one step on a timeline: a lane a direction, the layers as bands behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES, REASONS, Run
from sentinel.core.trace import LayerId
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.headline import began, moves_of_steps, nearest_median
from sentinel.reports.html.svg import WIDTH, Frame, escape, figure, legend, tag, text, time_ticks

MAX_SHOWN = 1500
"""Migrations drawn, the largest first; a note says how many more there are."""
MAX_ROWS = 5
"""Of one lane: migrations under way at once are drawn below each other."""

Place = Callable[[int], float]
"""Where a time in ns lies in the picture."""

_ROW, _GAP = 14, 10
_PAINT = {
    "done": 'class="done"',
    "late": 'fill="url(#hatch)" class="mark"',
    "failed": 'fill="url(#cross)" class="mark"',
    "skipped": 'fill="url(#dots)" class="mark"',
    "partial": 'class="partial"',
    "already there": 'class="there"',
}


def lanes(run: Run, plan: Plan | None, layers: Sequence[LayerId], keys: Callable[[int], str] = lambda _: "") -> str:
    """A typical step of those that ran as planned. `keys(block)`: what a click on a move of it marks."""
    step = typical_step(run)
    if step is None:
        return ""
    bands = run.layers[run.layers["step"] == step]
    moves = moves_of_steps(run)
    moves = moves[moves["step"] == step]
    never = ~began(run, moves)  # each is drawn where it was refused or given up
    moves["start_ns"][never] = moves["stop_ns"][never]
    if not len(bands) or not len(moves):
        return ""
    shown = moves[np.argsort(-moves["nbytes"], kind="stable")[:MAX_SHOWN]]
    begin = int(bands["start_ns"][0])
    end = max(int((bands["start_ns"] + bands["duration_ns"]).max()), int(shown["stop_ns"].max()))
    pairs = sorted({(int(m["source"]), int(m["target"])) for m in moves}, key=lambda p: (p[0] < p[1], p))
    frame = Frame(110, 26, WIDTH - 110 - 16, 0, 1)
    scale = max(end - begin, 1)

    def x(ns: int) -> float:
        return frame.x(min(max((ns - begin) / scale, 0.0), 1.0))

    body, y = "", frame.top
    for pair in pairs:
        rows = shown[(shown["source"] == pair[0]) & (shown["target"] == pair[1])]
        depth, drawn = _lane(rows, x, y, plan, keys)
        title = "promote" if pair[1] < pair[0] else "demote"
        body += text(frame.left - 8, y + 11, title, class_="label", text_anchor="end")
        names = f"{run.tier_names[pair[0]]} → {run.tier_names[pair[1]]}"
        body += text(frame.left - 8, y + 24, names[:18], class_="tick", text_anchor="end")
        body += drawn
        y += max(depth, 2) * _ROW + _GAP
    behind = _bands(bands, x, frame.top - 4, y - frame.top, layers)
    axis = "".join(
        text(x(begin + int(ns)), y + 14, label, class_="tick", text_anchor="middle") for ns, label in time_ticks(scale)
    )
    more = f" The {len(moves) - len(shown)} smallest are not drawn." if len(moves) > len(shown) else ""
    counts = np.bincount(moves["outcome"], minlength=len(OUTCOMES))
    told = ", ".join(f"{int(counts[i])} {word}" for i, word in enumerate(OUTCOMES) if counts[i])
    moved = format_bytes(int(moves["moved_bytes"].sum()))
    took = int(run.steps["duration_ns"][run.steps["step"] == step][0])
    says = (
        f"Step {step}, the one nearest the median: {format_ns(took)}, {len(moves)} migrations,"
        f" {moved} moved; {told}.{more}"
    )
    swatches = legend([(paint, word) for word, paint in _PAINT.items() if counts[OUTCOMES.index(word)]])
    return figure("Migrations of one step", says, behind + body + axis, y + 24, swatches)


def typical_step(run: Run) -> int | None:
    """Of the steps that ran as planned and have migrations, other than those done once only, the one whose time is
    nearest the median; the last of equals."""
    return nearest_median(run.steps[run.steps["in_step"] & np.isin(run.steps["step"], moves_of_steps(run)["step"])])


def _bands(bands: NDArray[Any], x: Place, top: float, height: float, layers: Sequence[LayerId]) -> str:
    """The layers of the step; what waited for a migration is marked at the top."""
    parts = []
    for number, row in enumerate(bands):
        start, took, stall = int(row["start_ns"]), int(row["duration_ns"]), int(row["stall_ns"])
        x0, x1 = x(start), x(start + took)
        label = str(layers[row["layer"]]) if row["layer"] < len(layers) else ""
        words = escape(f"layer {row['layer']} · {label}\n{format_ns(took)}, of it {format_ns(stall)} waiting")
        style = "band reader" if number % 2 else "reader"
        parts.append(
            f'<rect x="{x0:.1f}" y="{top:.0f}" width="{x1 - x0:.1f}" height="{height:.0f}"'
            f' class="{style}" data-t="{words}"/>'
        )
        if stall:
            parts.append(
                tag("rect", x=x0, y=top - 8, width=max(x(start + stall) - x0, 1.0), height=6.0, class_="stall")
            )
    return "".join(parts)


def _lane(rows: NDArray[Any], x: Place, top: float, plan: Plan | None, keys: Callable[[int], str]) -> tuple[int, str]:
    """(rows used, marks) of the migrations of one direction."""
    free_at = [-1 << 62] * MAX_ROWS
    parts, depth = [], 0
    for row in rows[np.argsort(rows["start_ns"], kind="stable")]:
        start, stop = int(row["start_ns"]), int(row["stop_ns"])
        place = next((i for i in range(MAX_ROWS) if free_at[i] <= start), int(np.argmin(free_at)))
        free_at[place] = max(free_at[place], stop)
        depth = max(depth, place + 1)
        outcome, block = OUTCOMES[row["outcome"]], int(row["block"])
        name = plan.blocks[block].name if plan is not None and plan.blocks[block].name else f"block {block}"
        words = escape(
            f"{name}\n{format_bytes(int(row['moved_bytes']))} of {format_bytes(int(row['nbytes']))}"
            f" in {format_ns(stop - start)}"
            f"\n{REASONS[row['reason']]} · {outcome}"
        )
        x0 = x(start)
        parts.append(
            f'<rect x="{x0:.1f}" y="{top + place * _ROW:.0f}" width="{max(x(stop) - x0, 1.5):.1f}"'
            f' height="{_ROW - 3}" {_PAINT[outcome]} data-k="{keys(block)}" data-t="{words}"/>'
        )
    return depth, "".join(parts)
