"""Placing: what a training loop within a `with` computes is placed, as `sentinel run` does it for a whole script."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from sentinel import session
from sentinel.core.ending import end_all
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.interrupts import is_interrupt
from sentinel.files.disk import check_writable
from sentinel.reports.forms import form_of
from sentinel.reports.rank_files import RankFiles
from sentinel.runtime import RUNTIME
from sentinel.session.auto import CUT_SHORT, NO_LOOP, Follower
from sentinel.session.request import Request, settings
from sentinel.system.launched import SHOWN, Launched, launched, of_this_rank
from sentinel.system.progress import say
from sentinel.tiers.file_tier import is_file

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.reports import Report
    from sentinel.session.session import Session


class Options(TypedDict, total=False):
    """The arguments of `sentinel.placing`."""

    fast: str | int | None
    slow: str
    tracker: str
    policy: str
    machine: str | os.PathLike[str] | Machine | None
    plan: str | os.PathLike[str] | Plan | None
    rate_limit: str | None
    cap: str | int | None
    overlap_optimizer: bool
    keep_fast: str | Sequence[str] | None
    keep_slow: str | Sequence[str] | None
    smallest: str | int | None


class Placing:
    """From `begin` to `end` a training loop is looked for, one of its steps is watched, and the plan is applied.

    May begin again once it has ended. See `sentinel.placing`.
    """

    def __init__(self, request: Request, report: str | os.PathLike[str] | None = None) -> None:
        self._request, self._report = request, report
        self._path = ""
        self._began_s = 0.0
        self._follower: Follower | None = None
        self._begun_in = 0  # the process; 0: not begun
        self._before: object = None
        self._on_file: object = None  # the session that began at once

    def begin(self) -> None:
        """What is begun in the script's place, by `sentinel run` or another Placing, ends.

        Raises UsageError if a session is running that the program itself began, and whatever is wrong with the
        arguments, with nothing changed.
        """
        asked = session.wanted(self._request)
        asked.check()
        path = _report_path(self._report)
        session.leave_to_script()
        if RUNTIME.sink is not None and is_file(RUNTIME.overrides.get("slow")):
            if self._report:
                told = "the report of the whole run tells of this placing()"
                say(f"{told}: report={os.fspath(self._report)!r} is not written", wrong=True)
            return  # `sentinel run` began it for the whole script
        before = RUNTIME.placing
        if isinstance(before, Placing) and RUNTIME.sink is before._on_file:
            before.end()
        if RUNTIME.sink is not None:
            raise UsageError("placing(): a session is running already", "call sentinel.stop() to end it")
        self.end()  # where that never came, and no session began
        self._path, self._before = path, RUNTIME.last
        self._began_s = time.time()
        if is_file(asked.slow):
            session.start_profile(request=asked)
            self._on_file, RUNTIME.placing = RUNTIME.sink, self
        else:
            gc.collect()  # a loop is to train all optimizers that there are, as far as its steps do not repeat for long
            self._follower = Follower(asked)
        self._begun_in = os.getpid()

    def end(self, *, failed: bool = False) -> None:
        """Stock allocation is back, the report is written, and what was annotated for the loop is as it was. Does
        nothing where nothing was begun, and in a forked child.

        `failed`: an exception ends the loop, so a step that was watched to its end is not planned for any more. What
        goes wrong here costs a sentence on stderr: the training is done.
        """
        if self._begun_in != os.getpid():
            return
        follower, self._follower = self._follower, None
        try:
            end_all(
                partial(_look_no_more, follower, failed=failed),
                _stop,
                partial(self._tell, follower, failed=failed),
                follower.give_way if follower is not None else str,
            )
        except Exception as error:
            if is_interrupt(error):
                raise
            say(f"placing() could not clean up completely: {error}", wrong=True)
        finally:
            self._begun_in, self._before, self._on_file = 0, None, None
            if RUNTIME.placing is self:
                RUNTIME.placing = None

    def _tell(self, follower: Follower | None, *, failed: bool) -> None:
        """Write the report, or say why there is none, unless an error told that."""
        last = session.current()
        begun = follower.session if follower is not None else None
        if begun is not None and begun is not last:  # another placing within this one has begun a session since
            last = begun
        elif last is not None and last.told and RUNTIME.last is not self._before:
            say("this placing() placed nothing: one within it did, and has reported")
            return
        if why := self._why_nothing(last):
            if not failed and not (follower and follower.failed):
                say(f"nothing was placed: {why}", wrong=True)
        elif self._path:
            report = last.report(bounded=not failed) if last is not None else session.report()
            self._write(report, last.who if last is not None else Launched(), failed=failed)
        if last is not None and RUNTIME.last is not self._before:
            last.told = True

    def _why_nothing(self, last: Session | None) -> str:
        """Why there is nothing to report; "" where there is something."""
        if RUNTIME.last is self._before:
            return NO_LOOP
        return f"the loop {CUT_SHORT}" if last is not None and last.profile is None and last.plan is None else ""

    def _write(self, report: Report, who: Launched, *, failed: bool) -> None:
        """Where it was asked for, or on stderr where no file can be written there any more. `who`: as the session was
        told."""
        if self._path == SHOWN:
            sys.stderr.write(report.text())
            return
        who = who if who.size > 1 else launched()
        try:
            if who.size > 1:
                RankFiles(self._path, who, self._began_s).write(report, "failed" if failed else "ended")
            else:
                report.write(self._path)
        except FormatError as error:
            say(f"{error}; this is the report:", wrong=True)
            sys.stderr.write(report.text())

    def __enter__(self) -> Placing:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=error is not None and not _ends_well(error))


def _ends_well(error: BaseException) -> bool:
    """Whether a loop ends so that did all that it was to do: by `sys.exit(0)`, or as a generator that is left."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


def _look_no_more(follower: Follower | None, *, failed: bool) -> None:
    if follower is not None and failed:
        follower.leave()
    elif follower is not None:
        follower.finish()


def _stop() -> None:
    if RUNTIME.sink is not None:
        session.stop()


def _report_path(given: str | os.PathLike[str] | None) -> str:
    """Absolute; "" without one, SHOWN to show it. Raises what writing it would raise, as far as that is known."""
    if given is None:
        given = str(settings()["report"].value) if "report" in settings() else ""
    if os.fspath(given) in ("", SHOWN):
        return os.fspath(given)
    path = os.path.abspath(os.fspath(given))
    form_of(path)
    check_writable(of_this_rank(path))
    return path
