"""Report: everything that is shown of one session."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.reports import forms, perfetto
from sentinel.reports.caveats import done_sentence, events_of
from sentinel.reports.facts import Facts
from sentinel.reports.html.page import in_notebook
from sentinel.reports.reconcile import reconcile, tables_agree
from sentinel.reports.section import Heading, Section, tables_of
from sentinel.reports.setup import Setup
from sentinel.reports.summary import summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Report(Facts, forms.Written):
    """Drawn from the nouns by `build_report`; shows, and computes no physics. Its parts are SECTIONS. Its tables are
    tensors, accesses, migrations, layers, footprint, occupancy, blocks, steps and more.

    `profile`, `plan`, `machine`, `executed`, `simulated` are what it was drawn from, None where missing. `timelines`:
    names of the timelines that were written of it, which the page names.
    """

    timelines: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """One line, for prompts and notebooks."""
        h = self.headline
        kind, served = h["kind"] or "profiled and planned only", h["fast_served_fraction"]
        share = "" if served is None else f", {served:.1%} served from fast memory"
        return f"<Report {kind}{share}: print(report.text()), report.write('report.html')>"

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        return in_notebook(self, 48)

    @property
    def heading(self) -> Heading:
        """What was done, to which script, and the answer in short."""
        return Heading(
            "migration report",
            self.headline["kind"] or "profiled only",
            done_sentence(self.headline, begun=self.executed is not None),
            self.setup.script or "",
            summary(self.headline, self.setup.storage),
            self.grades,
            self._about_timelines(),
        )

    def _about_timelines(self) -> list[str]:
        """Those that were written; where none was, how to get one."""
        if self.run is not None and not self.timelines:
            how = "`--report NAME.trace`, or `report.write('NAME.trace')`, writes"
            return [f"{how} a timeline of these steps for ui.perfetto.dev: layers, migrations, bytes held."]
        return [f"Timeline of these steps: `{name}`; open it in ui.perfetto.dev." for name in self.timelines]

    @property
    def facts(self) -> Facts:
        """What its sections are drawn from: itself."""
        return self

    @cached_property
    def sections(self) -> tuple[Section[Facts], ...]:
        """Its parts, in the order in which they are read."""
        from sentinel.reports.sections import SECTIONS  # imports pandas, which takes half a second

        return SECTIONS

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name, checked against each other. Raises ReportError if they disagree."""
        found = tables_of(self.sections, self)
        tables_agree(found, self.run)
        return found

    def values(self) -> dict[str, Any]:
        """What the JSON form has beside the tables."""
        run, seen = self.run, self.executed.witnessed if self.executed else None
        events = events_of(run, first_trials=True) if run else None
        return {
            "headline": self.headline,
            "caveats": self.caveats,
            "quality": dataclasses.asdict(self.profile.quality) if self.profile else None,
            "provenance": [{"noun": a, "made_from": b, "proved": c} for a, b, c in self.provenance],
            "counters": run.counters.counted() if run else None,
            "witnessed": dataclasses.asdict(seen) if seen else None,
            "events": None if events is None else [{"step": step, "text": text} for step, text in events],
            "details": self.plan.details if self.plan else None,
            "script": self.setup.script,
        }

    def timeline(self) -> dict[str, Any]:
        """Layers and migrations in the Trace Event Format."""
        return perfetto.timeline(self)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the report in the form that the suffix names; returns the paths written.

        `.txt` the text; `.html` one page that needs nothing else; `.json` headline, caveats and all tables;
        `.csv` one file a table, `NAME-tensors.csv` and so on beside `NAME.csv`, which holds the headline;
        `.trace` a timeline for ui.perfetto.dev, which pages that are written later name. Raises
        UsageError for another suffix, FormatError if the file cannot be written.
        """
        written = super().write(path)
        self.timelines.extend(made.name for made in written if made.suffix.lower() == ".trace")
        return written


def build_report(
    *,
    profile: Profile | None = None,
    plan: Plan | None = None,
    machine: Machine | None = None,
    executed: Run | None = None,
    simulated: Run | None = None,
    setup: Setup | None = None,
) -> Report:
    """The Report of what there is. Raises ReportError if sums do not reconcile, UsageError if runs are swapped."""
    if executed is not None and executed.kind != "executed":
        raise UsageError(f"executed= got a {executed.kind} run", "pass it as simulated=")
    if simulated is not None and simulated.kind != "simulated":
        raise UsageError(f"simulated= got an {simulated.kind} run", "pass it as executed=")
    tiers = max((len(each.tier_names) for each in (plan, executed, simulated) if each is not None), default=0)
    if machine is not None and tiers > len(machine.tiers):
        what = f"the machine {machine.name} has {len(machine.tiers)} tiers, the plan or run has {tiers}"
        raise UsageError(what, "give the machine that it was made for")
    reconcile(profile, plan, tuple(run for run in (executed, simulated) if run is not None))
    return Report(profile, plan, machine, executed, simulated, setup or Setup())
