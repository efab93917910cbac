"""Report: everything that is shown of one session, behind five names."""

from __future__ import annotations

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
from sentinel.files import digest
from sentinel.reports import buckets, false_sharing, ranges, who_moved
from sentinel.reports.caveats import caveats_of
from sentinel.reports.headline import headline_of, shown
from sentinel.reports.reconcile import ReportError, reconcile
from sentinel.reports.setup import Setup

if TYPE_CHECKING:  # pandas takes half a second to import: only who asks for frames pays
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Report:
    """Drawn from the nouns by `build_report`; shows, and computes no physics.

    `profile`, `plan`, `machine`, `executed`, `simulated` are what it was drawn from, None where missing.
    """

    profile: Profile | None
    plan: Plan | None
    machine: Machine | None
    executed: Run | None
    simulated: Run | None
    setup: Setup = field(default_factory=Setup)

    def __repr__(self) -> str:
        """One line, for prompts and notebooks."""
        h = self.headline
        kind, served = h["kind"] or "profiled and planned only", h["fast_served_fraction"]
        share = "" if served is None else f", {served:.1%} served from fast memory"
        return f"<Report {kind}{share}: print(report.text()), report.write('report.html')>"

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        from html import escape

        from sentinel.reports.html.page import page

        return f'<iframe srcdoc="{escape(page(self))}" style="width: 100%; height: 48em; border: 0"></iframe>'

    @property
    def run(self) -> Run | None:
        """The run that the report is about: the executed one if it has a step, else the simulated one."""
        return shown(self.executed, self.simulated)

    @cached_property
    def headline(self) -> dict[str, Any]:
        """The figures to compare, by the names of docs/measurement.md. Unknown is None."""
        return headline_of(self.profile, self.plan, self.machine, self.executed, self.simulated, self.setup)

    @cached_property
    def caveats(self) -> list[str]:
        """Sentences that stand on top of every form of the report."""
        found = caveats_of(self.headline, self.profile, self.plan, self.machine, self.run, self.setup)
        strangers = [(what, source) for what, source, same in self.provenance if same is False]
        return found + [f"The {what} was made from another {source} than is shown here." for what, source in strangers]

    @cached_property
    def provenance(self) -> list[tuple[str, str, bool | None]]:
        """(what, made from what, proved?): True if the origin names this very input, None if it names none."""
        made: list[tuple[str, Plan | Run | None, str, Profile | Machine | Plan | None]] = [
            ("plan", self.plan, "profile", self.profile),
            ("plan", self.plan, "machine", self.machine),
            ("executed run", self.executed, "plan", self.plan),
            ("simulated run", self.simulated, "plan", self.plan),
        ]
        found = []
        for what, noun, source, parent in made:
            if noun is not None and parent is not None:
                named = noun.origin.get(source)
                found.append((what, source, named == digest(parent) if named else None))
        return found

    def frames(self) -> dict[str, pd.DataFrame]:
        """Tables by name: tensors, accesses, migrations, layers, footprint, occupancy, blocks, steps and more.

        Columns are nullable: <NA> is unknown. `tensor` is the unique name. A table whose noun is missing is absent.
        """
        return dict(self._frames)

    @cached_property
    def _frames(self) -> dict[str, pd.DataFrame]:
        from sentinel.reports import frames as make

        names = self.profile.names if self.profile else ()
        found: dict[str, pd.DataFrame] = {}
        if self.profile is not None:
            found["tensors"] = make.tensors(self.profile, self.plan, self.setup.in_place)
            found["accesses"] = make.accesses(self.profile)
            found["footprint"] = make.footprint(self.profile)
            by_range = ranges.frame(self.profile, self.plan)
            if by_range is not None:
                found["ranges"] = by_range
            if self.profile.sharing is not None:
                found["false_sharing"] = false_sharing.by_layer(self.profile.sharing, self.profile.layers)
        found["layers"] = make.layers(self.profile, self.plan, self.run, self.simulated)
        found["migrations"] = make.migrations(self.run, self.plan, names)
        found["steps"] = make.steps(self.run)
        if who_moved.witness_pages(self.executed) is not None:
            found["who_moved"] = who_moved.frame(self.executed)
        if self.plan is not None:
            found["blocks"] = make.blocks(self.plan, names)
            found["occupancy"] = make.occupancy(self.plan)
        found["in_place"] = make.in_place(self.setup.in_place)
        found["unmanaged"] = make.unmanaged(self.setup.unmanaged.items())
        if self.setup.buckets:
            found["buckets"] = buckets.frame(self.setup.buckets)
        self._frames_agree(found)
        return found

    def _frames_agree(self, found: dict[str, pd.DataFrame]) -> None:
        """The tables say the same as the headline."""
        once = found["migrations"]["reason"].isin(["initial", "restore"])
        ended = found["migrations"]["step"].isin(found["steps"]["step"])
        moved = int(found["migrations"]["moved_bytes"][~once & ended].sum())
        by_step = int(found["steps"]["migrated_bytes"].sum())
        if self.run is not None and moved != by_step:
            raise ReportError("migrated bytes", f"the migrations add up to {moved}", f"the steps to {by_step}")
        if "footprint" in found:
            roles, rows = int(found["footprint"]["nbytes"].sum()), found["tensors"]
            tensors = int((rows["nbytes"] * rows["lifetime_layers"]).sum())
            if roles != tensors:
                raise ReportError("byte-layers", f"the roles add up to {roles}", f"the tensors to {tensors}")

    def text(self) -> str:
        """The report for a terminal."""
        from sentinel.reports.text import text_of

        return text_of(self)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the report in the form that the suffix names; returns the paths written.

        `.txt` the text; `.html` one page that needs nothing else; `.json` headline, caveats and all tables;
        `.csv` one file a table, `NAME-tensors.csv` and so on beside `NAME.csv`, which holds the headline;
        `.trace` a timeline for ui.perfetto.dev. Raises UsageError for another suffix, FormatError if the
        file cannot be written.
        """
        from sentinel.reports.forms import form_of

        return form_of(path)(self, Path(path))


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
    reconcile(profile, plan, tuple(run for run in (executed, simulated) if run is not None))
    return Report(profile, plan, machine, executed, simulated, setup or Setup())
