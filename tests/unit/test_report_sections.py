"""Reports by sections: one entry in one tuple is enough for every form, of whatever report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sentinel.core.errors import UsageError
from sentinel.core.run import Run
from sentinel.reports import forms, sections
from sentinel.reports.facts import Facts
from sentinel.reports.html.page import page
from sentinel.reports.html.tables import pairs
from sentinel.reports.section import Document, Frames, Heading, Section, TextTable, tables_of
from sentinel.reports.text import text_of
from tests.unit.report_builders import NASTY, SIMULATED, full_report


def _weights(facts: Facts) -> pd.DataFrame | None:
    return pd.DataFrame({"grams": pd.array([1009, None], "Int64")}) if facts.plan is not None else None


def _weights_text(report: Document[Facts]) -> TextTable:
    rows = [("grams", str(grams)) for grams in report.tables["weights"]["grams"].dropna()]
    return TextTable("How heavy it is", rows)


def _weights_html(report: Document[Facts]) -> str:
    return pairs(_weights_text(report).rows, "Weights")


WEIGHTS = Section[Facts]("Weights of <all> tensors", "weights", _weights, _weights_text, _weights_html)


def test_one_entry_in_the_tuple_is_a_part_of_every_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = full_report()
    assert "weights" not in before.frames()
    assert "1009" not in before.text() + page(before)
    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, WEIGHTS))
    report = full_report()
    assert report.frames()["weights"]["grams"].tolist()[0] == 1009
    assert report.text() == before.text() + "\nHow heavy it is\n  grams  1009\n"
    assert "<h2>Weights of &lt;all&gt; tensors</h2>" in page(report)
    assert "1009" in page(report)
    report.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["frames"]["weights"] == {"grams": [1009, None]}
    assert tmp_path / "r-weights.csv" in report.write(tmp_path / "r.csv")
    assert (tmp_path / "r-weights.csv").read_text() == 'grams\n1009\n""\n'


def test_the_order_of_the_tuple_is_the_order_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SECTIONS", (WEIGHTS, *sections.SECTIONS))
    report = full_report()
    assert report.text().index("How heavy it is") < report.text().index("\nHeadline\n")
    assert page(report).index("Weights of") < page(report).index("<h2>Headline</h2>")
    assert next(iter(report.frames())) == "weights"


def test_titles_and_tables_have_one_section_each() -> None:
    titles = [section.title for section in sections.SECTIONS]
    tables = [section.table for section in sections.SECTIONS if section.table]
    assert len(set(titles)) == len(titles)
    assert len(set(tables)) == len(tables)
    assert {"tensors", "migrations", "layers", "steps", "footprint", "occupancy", "accesses", "blocks"} <= set(tables)


Ranks = tuple[Run, ...]


def _steps_by_rank(ranks: Ranks) -> pd.DataFrame:
    return pd.DataFrame({"rank": range(len(ranks)), "steps": [len(run.steps) for run in ranks]})


def _ranks_text(report: Document[Ranks]) -> TextTable:
    rows = report.tables["ranks"].astype(str).to_numpy().tolist()
    return TextTable("Steps by rank", [("rank", "steps"), *(tuple(row) for row in rows)])


@dataclass(frozen=True)
class RanksReport:
    """A report of several ranks: no session, no plan, no headline."""

    facts: Ranks
    caveats: list[str]
    sections: tuple[Section[Ranks], ...]

    @property
    def heading(self) -> Heading:
        return Heading("report of several ranks", "simulated", "Two ranks were simulated.", "train.py")

    @cached_property
    def tables(self) -> Frames:
        return tables_of(self.sections, self.facts)

    def values(self) -> dict[str, Any]:
        return {"ranks": len(self.facts)}

    def timeline(self) -> dict[str, Any] | None:
        return None


def test_a_report_of_something_else_than_a_session_has_every_form(tmp_path: Path) -> None:
    by_rank = Section[Ranks]("Ranks", "ranks", _steps_by_rank, _ranks_text, lambda report: str(len(report.facts)))
    report = RanksReport((SIMULATED, SIMULATED), ["Rank 1 was late."], (by_rank,))
    assert text_of(report) == (
        "Sentinel report of several ranks [SIMULATED]\ntrain.py\nTwo ranks were simulated.\n\n"
        "Caveats\n  ! Rank 1 was late.\n\nSteps by rank\n  rank  steps\n  0     3\n  1     3\n"
    )
    for suffix in (".txt", ".html", ".json", ".csv"):
        assert all(path.stat().st_size for path in forms.write(report, tmp_path / f"r{suffix}"))
    assert "<h2>Ranks</h2>2</section>" in (tmp_path / "r.html").read_text()
    assert "<h1>Report of several ranks " in (tmp_path / "r.html").read_text()
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["ranks"], found["frames"]["ranks"]) == (2, {"rank": [0, 1], "steps": [3, 3]})
    with pytest.raises(UsageError, match="a report of several ranks has no timeline"):
        forms.write(report, tmp_path / "r.trace")


def test_no_name_drives_the_terminal_or_breaks_a_line_wherever_it_stands() -> None:
    class Named(RanksReport):
        name = NASTY

        @property
        def heading(self) -> Heading:
            return Heading("report", self.name, self.name, self.name, [("memory", self.name)])

    def lines(name: str) -> list[str]:
        Named.name = name
        cells = Section[Ranks]("Ranks", text=lambda _: TextTable("Ranks", [("name", "more"), (name, name)]))
        return text_of(Named((), [f"{name} was late."], (cells,))).split("\n")

    assert "\x1b" in NASTY
    found = lines(NASTY)
    assert len(found) == len(lines("any"))
    assert all(line.isprintable() for line in found)
