"""Where the time of a step goes: computing, slow accesses, waits, and the moves beside it."""

from __future__ import annotations

import pandas as pd

from sentinel.core.units import format_ns
from sentinel.reports.caveats import busy
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import whole, words
from sentinel.reports.html.part_bars import Part, part_bars
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.section import NO_TEXT, Document, Section, TextTable
from sentinel.reports.step_parts import StepParts, step_parts

TITLE = "Where did the time go"


def _frame(facts: Facts) -> pd.DataFrame | None:
    """One row a step: stock, predicted, applied. compute + slow + wait + other = total; all in ns."""
    parts = step_parts(facts)
    if not parts:
        return None
    columns = {name: [getattr(part, name) for part in parts] for name in StepParts._fields if name != "what"}
    found = {
        name: whole([value or 0 for value in values], [value is not None for value in values])
        for name, values in columns.items()
    }
    return pd.DataFrame({"step": words(part.what for part in parts), **found})


def _answer(last: StepParts) -> str:
    """The last of the steps, in a sentence."""
    word = {"applied": "takes", "predicted": "would take"}.get(last.what)
    if word is None:
        return f"A stock step takes {format_ns(last.total_ns)}."
    told = [f"{format_ns(last.compute_ns)} computing"]
    if last.slow_ns is not None:
        told.append(f"{format_ns(last.slow_ns)} more for accesses to slower memory")
    told.append(f"{format_ns(last.wait_ns)} waiting for moves")
    if last.other_ns:
        told.append(f"{format_ns(last.other_ns)} {_other(last)}")
    beside = ""
    if last.moving_ns:
        beside = f" Moves were under way for {format_ns(last.moving_ns)}, {last.hidden_ns / last.moving_ns:.0%} of it"  # type: ignore[operator]
        beside += " hidden behind the layers."
    return f"A step {word} {format_ns(last.total_ns)}: {', '.join(told)}.{beside}"


def _other(part: StepParts) -> str:
    if part.what == "predicted":
        return "that moves take from compute"
    return "for slower accesses and all else" if part.slow_ns is None else "for all else, Sentinel's own work included"


def _text(report: Document[Facts]) -> TextTable:
    parts = step_parts(report.facts)
    if not parts or parts[-1].what == "stock":
        return NO_TEXT
    rows = [("step", "all", "computing", "slow accesses", "waits", "other", "moves hidden")]
    for part in parts:
        slow = "unknown" if part.slow_ns is None else format_ns(part.slow_ns)
        times = (format_ns(part.total_ns), format_ns(part.compute_ns), slow, format_ns(part.wait_ns))
        hidden = ""
        if part.moving_ns and part.hidden_ns is not None:
            hidden = f"{format_ns(part.hidden_ns)} of {format_ns(part.moving_ns)}"
        rows.append((part.what, *times, format_ns(part.other_ns), hidden))
    return TextTable(TITLE, rows)


def _html(report: Document[Facts]) -> str:
    parts = step_parts(report.facts)
    if not parts or parts[-1].what == "stock":
        return ""
    most = max(max(part.total_ns, part.moving_ns or 0) for part in parts)
    bars = [(part.what, format_ns(part.total_ns), _parts_of(part)) for part in parts]
    moving = parts[-1]
    if moving.moving_ns and moving.hidden_ns is not None:
        shown = [
            Part("hidden", "moves, hidden", moving.hidden_ns),
            Part("unhidden", "moves, waited for", moving.moving_ns - moving.hidden_ns),
        ]
        bars.append(("moves", format_ns(moving.moving_ns), shown))
    note = "The host was busy: these times say little. " if busy(report.facts.headline) else ""
    note += "Each bar is the step nearest the median. Its compute part is the time of a stock step, as far as it fits."
    answer = tag("p", escape(_answer(parts[-1])), class_="answer")
    return answer + part_bars(bars, most, "The time of a step", format_ns) + tag("p", escape(note), class_="note")


def _parts_of(part: StepParts) -> list[Part]:
    slow = [] if part.slow_ns is None else [Part("slow", "slow accesses", part.slow_ns)]
    other = Part("other", "slow accesses and other" if part.slow_ns is None else "other", part.other_ns)
    return [Part("compute", "computing", part.compute_ns), *slow, Part("wait", "waits for moves", part.wait_ns), other]


STEP_TIME = Section[Facts](TITLE, "step_time", _frame, _text, _html)
