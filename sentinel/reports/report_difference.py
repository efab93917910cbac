"""What changed from one report to another, tensor by tensor, and what that cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from sentinel.core.units import counted, format_bytes, format_ns
from sentinel.reports.alike import alike
from sentinel.reports.caveats import busy
from sentinel.reports.forms import Written
from sentinel.reports.headline import number
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.html.tables import MAX_ROWS, Column, Show, of_share, pairs, plain, table
from sentinel.reports.saved_report import SavedReport
from sentinel.reports.section import NO_TEXT, Document, Heading, Section, TextTable

TOP = 15
"""Groups of like tensors in the text."""
_FIGURES: tuple[tuple[str, str, Show], ...] = (
    ("what was done", "kind", str),
    ("slow tier", "slow", str),
    ("policy", "policy", str),
    ("fast budget", "fast_capacity_bytes", format_bytes),
    ("footprint, all fast", "peak_bytes", format_bytes),
    ("outside of the plan", "outside_bytes", format_bytes),
    ("served from fast", "fast_served_fraction", of_share),
    ("migrated a step", "migrated_bytes_per_step", format_bytes),
    ("waits a step", "stall_ns_per_step", format_ns),
    ("step, plain", "step_ns_plain", format_ns),
    ("step, applied", "step_ns_applied", format_ns),
    ("step, predicted", "step_ns_predicted", format_ns),
    ("layers", "layers", plain),
    ("tensors", "tensors", plain),
)


@dataclass(frozen=True)
class Difference:
    """Two reports, of which the second is compared with the first."""

    before: SavedReport
    after: SavedReport

    @cached_property
    def tensors(self) -> pd.DataFrame:
        """One row a tensor that changed, the one whose time changed most first."""
        joined = _of_tensors(self.before).merge(
            _of_tensors(self.after), on="tensor", how="outer", suffixes=("_before", "_after"), sort=False
        )
        for name in ("lost_ns", "moved_bytes"):
            for side in ("before", "after"):
                gone = joined[f"nbytes_{side}"].isna()
                joined.loc[gone & joined[f"{name}_{side}"].isna(), f"{name}_{side}"] = 0
        joined["change_ns"] = joined["lost_ns_after"] - joined["lost_ns_before"]
        joined["what"] = pd.array([_what(row) for row in joined.to_dict("records")], "string")
        changed = joined[(joined["what"] != "") | (joined["change_ns"].abs().fillna(0) >= 1)].copy()
        changed["weight"] = changed["change_ns"].abs().fillna(0)
        changed["size"] = changed["nbytes_after"].fillna(changed["nbytes_before"])
        order = changed.sort_values(["weight", "size", "tensor"], ascending=[False, False, True], kind="stable")
        return order.drop(columns=["weight", "size"]).reset_index(drop=True)

    def answer(self) -> str:
        """What the whole of it cost, in a sentence or two."""
        told = []
        applied, predicted = (
            [number(each.headline.get(f"step_ns_{how}")) for each in (self.before, self.after)]
            for how in ("applied", "predicted")
        )
        step_a, step_b = applied if all(applied) else predicted  # never one beside the other
        if step_a and step_b:
            ratio = "" if busy(self.before.headline) or busy(self.after.headline) else f" ({step_b / step_a - 1:+.1%})"
            step = "a step takes" if all(applied) else "as predicted, a step takes"
            told.append(f"{step} {format_ns(step_b)} instead of {format_ns(step_a)}{ratio}")
        fast_a, fast_b = (each.headline.get("fast_capacity_bytes") for each in (self.before, self.after))
        if isinstance(fast_a, int) and isinstance(fast_b, int):
            budgets = f"with {format_bytes(fast_b)} of fast memory"
            told.append(f"{budgets} instead of {format_bytes(fast_a)}" if fast_a != fast_b else f"{budgets}, as before")
        change = self.tensors["change_ns"].dropna()
        if len(change):
            word = "more" if change.sum() >= 0 else "less"
            told.append(f"slow accesses and waits cost {format_ns(abs(float(change.sum())))} {word}")
        first = ", ".join(told) if told else "nothing that both reports know"
        on_files = all(each.headline.get("kind") == "passive" for each in (self.before, self.after))
        changed = "" if on_files else f"; {counted(len(self.tensors), 'tensor')} changed"  # the others list them
        return f"{first[0].upper()}{first[1:]}{changed}."


def _of_tensors(report: SavedReport) -> pd.DataFrame:
    """tensor, role, tier, nbytes, lost_ns (slow accesses and waits a step), moved_bytes (a step). Unknown is <NA>."""
    tensors, slow, moved = (
        report.table(name, ("tensor", *texts), numbers).dropna(subset=["tensor"]).drop_duplicates("tensor")
        for name, texts, numbers in (
            ("tensors", ("role", "tier"), ("nbytes",)),
            ("slow_tensors", (), ("slow_ns",)),
            ("moved_tensors", (), ("moved_bytes", "waited_ns")),
        )
    )
    found = tensors.merge(slow, on="tensor", how="left").merge(moved, on="tensor", how="left")
    if "slow_tensors" in report.columns and not slow["slow_ns"].isna().any():
        found["slow_ns"] = found["slow_ns"].fillna(0)
    if "moved_tensors" in report.columns:
        found["moved_bytes"] = found["moved_bytes"].fillna(0)
    found["lost_ns"] = found["slow_ns"] + found["waited_ns"].fillna(0)
    return found[["tensor", "role", "tier", "nbytes", "lost_ns", "moved_bytes"]]


def _what(row: dict[Any, Any]) -> str:
    """How a tensor's place or moves changed, in words; "" if they did not."""
    if pd.isna(row["nbytes_before"]) or pd.isna(row["nbytes_after"]):
        return "new" if pd.isna(row["nbytes_before"]) else "gone"
    told = []
    if row["nbytes_before"] != row["nbytes_after"]:
        told.append(f"{format_bytes(row['nbytes_after'])} instead of {format_bytes(row['nbytes_before'])}")
    places = [row["tier_before"], row["tier_after"]]
    if not any(pd.isna(place) for place in places) and places[0] != places[1]:
        told.append(f"begins in {places[1]} instead of {places[0]}")
    moved = [row["moved_bytes_before"], row["moved_bytes_after"]]
    if not any(pd.isna(nbytes) for nbytes in moved) and bool(moved[0]) != bool(moved[1]):
        told.append("moves now" if moved[1] else "moves no more")
    return ", ".join(told)


def _figure(value: Any, show: Show) -> str:
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return "unknown"
    return show(value) if isinstance(value, int | float) else str(value)


def _figures(document: Document[Difference]) -> TextTable:
    a, b = document.facts.before.headline, document.facts.after.headline
    rows = [("", document.facts.before.name, document.facts.after.name)]
    for words, name, show in _FIGURES:
        if a.get(name) is not None or b.get(name) is not None:
            rows.append((words, _figure(a.get(name), show), _figure(b.get(name), show)))
    return TextTable("Figures", rows)


def _figures_html(document: Document[Difference]) -> str:
    answer = tag("p", escape(document.facts.answer()), class_="answer")
    return answer + pairs(_figures(document).rows, "Figures of both")


def _groups(found: pd.DataFrame) -> list[tuple[str, str, float | None]]:
    """(tensors alike, what changed, change in ns) of the changed tensors, those of most time first."""
    names, listed = alike(found["tensor"].tolist()), []
    changed: Any = found.groupby([names.of, "what"], sort=False)
    for (group, what), part in changed:
        label = f"{names.names[group]} ×{len(part)}" if len(part) > 1 else part["tensor"].iloc[0]
        changes = part["change_ns"].dropna()
        listed.append((label, what or "as before", float(changes.sum()) if len(changes) else None))
    return sorted(listed, key=lambda row: -abs(row[2] or 0.0))


def _signed(change: float | None) -> str:
    if change is None:
        return "unknown"
    return ("+" if change > 0 else "−" if change < 0 else "") + format_ns(abs(change))


def _tensors_text(document: Document[Difference]) -> TextTable:
    listed = _groups(document.facts.tensors)
    if not listed:
        return NO_TEXT
    rows = [("time a step", "tensors", "what changed")]
    rows += [(_signed(change), label, what) for label, what, change in listed[:TOP]]
    return TextTable(f"Tensors that changed ({min(len(listed), TOP)} of {len(listed)}, similar ones as one row)", rows)


def _tensors_html(document: Document[Difference]) -> str:
    found = document.facts.tensors
    if not len(found):
        return tag("p", "No tensor is placed, moved or used differently.", class_="answer")
    columns: list[Column] = [
        ("tensor", "tensor", str),
        ("what", "what changed", str),
        ("change_ns", "time a step", _signed),
        ("lost_ns_before", "lost before", format_ns),
        ("lost_ns_after", "lost after", format_ns),
        ("moved_bytes_before", "moved before", format_bytes),
        ("moved_bytes_after", "moved after", format_bytes),
    ]
    shown = found.assign(what=found["what"].where(found["what"] != ""))
    keys = [str(key) for key in alike(found["tensor"].head(MAX_ROWS).tolist()).of]
    return table(shown, columns, "Tensors that changed", keys=keys)


FIGURES = Section[Difference]("Figures", text=_figures, html=_figures_html)
TENSORS_CHANGED = Section[Difference](
    "Tensors that changed", "tensors", lambda found: found.tensors, _tensors_text, _tensors_html
)


@dataclass(frozen=True)
class DifferenceReport(Written):
    """The comparison as a document in every form."""

    facts: Difference
    sections = (FIGURES, TENSORS_CHANGED)

    @property
    def heading(self) -> Heading:
        """Which is compared with which, and the answer."""
        a, b = self.facts.before, self.facts.after
        kinds = [str(each.headline.get("kind") or "profiled only") for each in (a, b)]
        badge = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]}, {kinds[1]}"
        return Heading("comparison of two reports", badge, self.facts.answer(), f"{a.name} → {b.name}")

    @property
    def caveats(self) -> list[str]:
        """What makes the two unlike."""
        a, b = self.facts.before.headline, self.facts.after.headline
        told = [
            f"{each.name}: {said}" for each in (self.facts.before, self.facts.after) for said in busy(each.headline)
        ]
        for words, name in (("what was done", "kind"), ("the slow tier", "slow"), ("the number of layers", "layers")):
            if a.get(name) != b.get(name):
                told.append(f"Different {words}: {a.get(name) or 'unknown'}, and {b.get(name) or 'unknown'}.")
        for each in (self.facts.before, self.facts.after):
            if "slow_tensors" not in each.columns and each.headline.get("kind") != "passive":
                told.append(f"{each.name} does not say what its tensors lose; draw it again with a plan.")
        return told

    def values(self) -> dict[str, Any]:
        """What the JSON form has beside the tables."""
        a, b = self.facts.before, self.facts.after
        figures = {name: [a.headline.get(name), b.headline.get(name)] for _, name, _ in _FIGURES}
        return {"reports": [a.name, b.name], "answer": self.facts.answer(), "caveats": self.caveats, "figures": figures}
