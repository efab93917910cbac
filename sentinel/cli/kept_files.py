"""KeptFiles: what a run leaves on disk, also where it ends in the middle."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.cli.common import check_outputs
from sentinel.cli.script_session import said
from sentinel.core.errors import SentinelError
from sentinel.core.interrupts import is_interrupt
from sentinel.runtime import RUNTIME, Observer
from sentinel.system.launched import SHOWN, launched, of_rank, of_this_rank
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile
    from sentinel.core.run import Run
    from sentinel.reports import Report
    from sentinel.reports.rank_files import RankFiles

DEFAULT_REPORT = "sentinel-report.html"

FIRST_S, MOST_S = 5.0, 300.0
"""A report of what is known so far is written 5 s after the plan was made, then after twice the time again and again,
at least every 300 s."""
COST_SHARE = 0.01
"""Such reports take at most so much of the run's time."""


def require_form(report: str | None) -> None:
    """Raises UsageError where no report has the form that this name asks for."""
    if report and report != SHOWN:
        from sentinel.reports.forms import form_of

        form_of(report)


class KeptFiles(Observer):
    """Writes profile and plan as soon as there are any, the report now and then, and all of them at the end.

    Each is written whole: a file is the old one or the new one. `report`: its path; "" without one; `named`: the user
    has. `ranks`: the files of its ranks, and `rank` is in all names, where the job is known to have several processes.
    What cannot be written costs a sentence.
    """

    def __init__(
        self,
        report: str = "",
        plan: str = "",
        profile: str = "",
        run: str = "",
        ranks: RankFiles | None = None,
        *,
        named: bool = True,
        rank: int | None = None,
    ) -> None:
        self.report, self._ranks = report, ranks
        self._plan, self._profile, self._run = plan, profile, run
        self._named, self._rank = named, rank
        self._began_s = time.time()
        self._folder = _folder_here()
        self._due, self._wait = math.inf, FIRST_S
        self._said: set[str] = set()
        self._profiled = False  # and not planned since
        self._told_ranks = False  # that this one trains
        self._all_ended = False  # all ranks, and one report is over all of them

    @classmethod
    def asked_for(cls, arguments: argparse.Namespace, script: str | None = None) -> KeptFiles:
        """As the command line says, with the rank in each name where the job has several processes. `script`: its file.

        Raises UsageError or FormatError for what could not be written in the end, or would be written over another
        file of the run. Where the default report cannot be, there is none.
        """
        paths = (arguments.report, arguments.save_plan, arguments.save_profile, arguments.save_run)
        report, plan, profile, run = (of_this_rank(path) if path else "" for path in paths)
        plan_read, machine_read = said(arguments, "plan"), said(arguments, "machine")
        read = (script, plan_read, plan_read and of_this_rank(plan_read), machine_read)
        nouns = [path for path in (plan, profile, run) if path]
        check_outputs(*_files_of_report(arguments.report), *nouns, read=read)
        if not report:
            report = of_this_rank(DEFAULT_REPORT)
            try:
                check_outputs(*_files_of_report(DEFAULT_REPORT), *nouns, read=read)
            except SentinelError as error:  # such as a folder that is only to be read
                say(f"{error}; without --report there is no report", wrong=True)
                report = ""
        if report and not arguments.report and not _is_ours(report):
            say(
                f"{report} exists and is not a report of Sentinel, so it is not overwritten: give --report FILE",
                wrong=True,
            )
            report = ""
        named, who, ranks = bool(arguments.report), launched(), None
        if report not in ("", SHOWN) and who.size > 1:
            ranks = _files_of_ranks(os.path.join(_folder_here(), arguments.report or DEFAULT_REPORT), named=named)
        return cls(report, plan, profile, run, ranks, named=named, rank=who.rank if who.size > 1 else None)

    def _learn_rank(self) -> None:
        """Where no launcher has told it, torch.distributed does, once the script has joined the others: from then on
        names have the rank."""
        who = launched()
        if self._rank is not None or who.size < 2:
            return
        self._rank = who.rank
        self._plan, self._profile, self._run = (
            of_rank(path, who.rank) if path else "" for path in (self._plan, self._profile, self._run)
        )
        if self.report in ("", SHOWN):
            return
        over_all, self.report = self.placed(self.report), of_rank(self.report, who.rank)
        if not self._named and not _is_ours(self.placed(self.report)):
            self._complain(f"{self.report} exists and is not a report of Sentinel, so it is not overwritten")
            self.report = ""
        else:
            self._ranks = _files_of_ranks(os.path.join(self._folder, over_all), self._began_s, named=self._named)

    # ---- see Observer -----------------------------------------------------------------------------------

    def session_started(self, models: Sequence[object], optimizers: Sequence[object]) -> None:
        """See Observer. The other ranks can tell from now on that this one trains."""
        del models, optimizers
        self._learn_rank()
        self._tell_ranks(ended="")

    def profile_made(self, profile: Profile) -> None:
        """See Observer."""
        self._save(profile, self._profile)
        self._profiled = True

    def plan_made(self, plan: Plan) -> None:
        """See Observer. A plan made again from the same step is written with its profile, at the end."""
        if self._profiled:
            self._profiled = False
            self._save(plan, self._plan)
        self._report_soon()

    def plan_applied(self, plan: Plan, machine: Machine, ranges: object) -> None:
        """See Observer. A saved plan is applied without being made."""
        del plan, machine, ranges
        self._report_soon()

    def _report_soon(self) -> None:
        self._due = min(self._due, time.monotonic() + self._wait)

    # ---- while the job trains ---------------------------------------------------------------------------

    def stepped(self) -> None:
        """An optimizer has stepped: write the report of what is known so far, if that is due. With a file as slow tier
        there is no plan from which on there is something to tell: the first step is as good. Observers are not told
        of such a session, so it is here that the other ranks learn that this one trains."""
        if self._due == math.inf and _on_a_file(RUNTIME.sink):
            if not self._told_ranks:
                self._learn_rank()
                self._tell_ranks(ended="")
            self._report_soon()
        if time.monotonic() >= self._due:
            self.write_so_far()

    def write_so_far(self) -> None:
        """The report as it stands, without the search for the bound."""
        from sentinel import session

        began, planned, self._due = time.monotonic(), session.current(), math.inf
        if RUNTIME.last is None or self.report in ("", SHOWN):
            return
        if planned is None or not planned.away:  # its thread is training, and changes what would be read
            try:
                self._write(session.report(bounded=False), "trains")
            except Exception as error:
                if is_interrupt(error):
                    raise
                self._complain(str(error))
        now = time.monotonic()
        self._wait = max(min(2 * self._wait, MOST_S), (now - began) / COST_SHARE)
        self._due = now + self._wait

    def placed(self, path: str) -> str:
        """Where the file of that name is, wherever the script has gone."""
        return path if _folder_here() == self._folder else os.path.join(self._folder, path)

    # ---- at the end -------------------------------------------------------------------------------------

    def write_nouns(self, run: Run | None) -> None:
        """The plan, the profile and the run of the session as it ended."""
        from sentinel import session

        self._learn_rank()
        last = session.current()
        for name, noun, path in (
            ("plan", last.plan if last else None, self._plan),
            ("profile", last.profile if last else None, self._profile),
            ("run", run, self._run),
        ):
            if path and noun is None:
                why = (
                    ", since with a file no step is profiled and nothing is planned" if _on_a_file(RUNTIME.last) else ""
                )
                self._complain(f"nothing to write to {path}: no {name} was made{why}")
            elif noun is not None:
                self._save(noun, path)

    def end_without_report(self, *, failed: bool) -> None:
        """The script has ended, and no step was watched to its end."""
        self._learn_rank()
        self._tell_ranks(ended="failed" if failed else "ended")

    def _tell_ranks(self, ended: str) -> None:
        self._told_ranks = True
        if self._ranks is not None:
            try:
                self._ranks.begin(ended or "trains")
            except SentinelError as error:
                self._complain(str(error))

    def _write(self, report: Report, state: str) -> None:
        if self._ranks is None:
            report.write(self.placed(self.report))
        else:
            self._all_ended = self._ranks.write(report, state)

    def write_report(self, report: Report, *, failed: bool = False) -> bool:
        """Whether it was written. Where it is to be shown, or finds no room on the disk, it is shown as text."""
        if self.report == SHOWN:
            sys.stderr.write(report.text())
            return False
        if not self.report:
            return False
        try:
            self._write(report, "failed" if failed else "ended")
        except SentinelError as error:
            say(f"{error}; this is the report:", wrong=True)
            sys.stderr.write(report.text())
            return False
        return True

    @property
    def written(self) -> str:
        """Where the report is, and the one over all ranks where this one has ended last."""
        own = self.placed(self.report)
        if own.lower().endswith(".csv"):
            own += f" (the headline) and {own[: -len('.csv')]}-*.csv (a table each)"
        return f"{own}; of all ranks {self._ranks.path}" if self._ranks is not None and self._all_ended else own

    def _save(self, noun: Plan | Profile | Run, path: str) -> None:
        from sentinel import files

        if path:
            try:
                files.save(noun, self.placed(path))
            except SentinelError as error:
                self._complain(str(error))

    def _complain(self, sentence: str) -> None:
        """Once: the same disk may be full again and again."""
        if sentence not in self._said:
            self._said.add(sentence)
            say(sentence, wrong=True)


def _on_a_file(session: object) -> bool:
    """Whether a session is one with a file as slow tier."""
    passive = sys.modules.get("sentinel.session.passive")
    return passive is not None and isinstance(session, passive.PassiveSession)


def _files_of_ranks(report: str, began_s: float | None = None, *, named: bool) -> RankFiles | None:
    """Those of the report that the user has `named`, or of the default one. None, said, where one is not ours."""
    from sentinel.reports.rank_files import RankFiles

    found = RankFiles(report, launched(), began_s)
    theirs = found.foreign() or ("" if named or _is_ours(report) else report)
    if theirs:
        say(
            f"{theirs} exists and is not a report of Sentinel: it stays, and there is no report over all ranks",
            wrong=True,
        )
    return None if theirs else found


def _files_of_report(path: str | None) -> list[str]:
    """All that are written for the report that is asked for by that path."""
    if not path or path == SHOWN:
        return []
    if launched().size < 2:
        return [path]
    from sentinel.reports.rank_files import RankFiles

    return RankFiles(path, launched()).written


def _folder_here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _is_ours(path: str) -> bool:
    """Whether a report may take the place of what is at `path`: nothing, or an earlier report."""
    from sentinel.files.disk import PAGE_BEGINS, may_be_written

    return may_be_written(path, PAGE_BEGINS.encode())
