"""The user's calls over one default session. Torch is needed from here on."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.errors import UsageError
from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.profiler.annotate import Annotation as Annotation
from sentinel.profiler.annotate import annotate as annotate
from sentinel.profiler.annotate import as_list
from sentinel.profiler.unobserved import unobserved, without_function_modes
from sentinel.reports import Report
from sentinel.runtime import RUNTIME, TickSink
from sentinel.session.passive import PassiveSession
from sentinel.session.pinning import keep as keep
from sentinel.session.request import Request, require_file, require_planning, settled
from sentinel.session.session import Session
from sentinel.system.versions import require_tested
from sentinel.tiers.file_tier import is_file

RUNTIME.is_compiling = torch.compiler.is_compiling


class BegunSession(TickSink, Protocol):
    """What the user's calls need of what `start_profile` begins: a Session, or what measures a script without one."""

    def open(self) -> None:
        """Begin, and take ticks. Whatever is wrong with the request is raised before anything is changed."""

    @property
    def profiling(self) -> bool:
        """Whether `end_profile()` is still to come."""

    def end_profile(self) -> Plan:
        """See `sentinel.end_profile`."""

    def stop(self) -> Run:
        """See `sentinel.stop`."""

    def report(self, *, bounded: bool = True) -> Report:
        """See `sentinel.report`; not `bounded`: without what takes seconds to find."""


def set_overrides(
    said: Mapping[str, Any],
    begin: Callable[[Request, Sequence[nn.Module], Sequence[Optimizer]], BegunSession] = Session,
) -> None:
    """From now on the arguments of a Request in `said` win over what `start_profile` is asked for, and it begins what
    `begin` makes."""
    RUNTIME.overrides = said
    RUNTIME.begin = begin


def current() -> Session | None:
    """The running session, or the last one; None before the first."""
    return RUNTIME.last if isinstance(RUNTIME.last, Session) else None


def is_profiling() -> bool:
    """Whether `end_profile()` is still to come of what runs."""
    last = _last()
    return last is not None and RUNTIME.sink is last and last.profiling


def start_profile(
    model: nn.Module | Sequence[nn.Module] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    request: Request | None = None,
) -> None:
    """See `sentinel.start_profile`."""
    _end_what_was_cut_short()
    models, optimizers = as_list(model, nn.Module, "model"), as_list(optimizer, Optimizer, "optimizer")
    if isinstance(RUNTIME.sink, PassiveSession) and is_file(RUNTIME.overrides.get("slow")):
        RUNTIME.sink.add(models, optimizers)  # `sentinel run` began it as the script imported torch
        return
    if RUNTIME.sink is not None:
        profiling = isinstance(RUNTIME.sink, Session) and RUNTIME.sink.profiling
        end_step = "call sentinel.end_profile() to end its profiled step, or sentinel.stop() to end it"
        raise UsageError(
            f"start_profile(): a session is running already{', and profiling' if profiling else ''}",
            end_step if profiling else "call sentinel.stop() to end it",
        )
    require_tested(torch.__version__)
    asked = wanted(request)
    require_file(asked)
    require_planning(asked)
    begin = RUNTIME.begin or Session
    session: BegunSession = (PassiveSession if begin is Session and is_file(asked.slow) else begin)(
        asked, models, optimizers
    )
    _settle_vector_math()
    before = RUNTIME.last
    try:
        RUNTIME.last = session
        with without_function_modes():
            session.open()
    except BaseException:
        if RUNTIME.sink is not session:  # else it is whole, or is ended by the next call: the interrupt came after it
            RUNTIME.last = before
        raise
    _watch_for_the_end()


def wanted(request: Request | None = None) -> Request:
    """The command line's word; where it has none, the call's; where that has none, what is configured.

    Raises what `configuration` raises.
    """
    return settled(replace(request or Request(), **RUNTIME.overrides), RUNTIME.overrides)


def _settle_vector_math() -> None:
    """MKL chooses its vector functions at its first call, and where two threads make that at once, one of them may
    compute with 12 bits; so one thread makes it. See docs/decisions/0120-mkl-is-called-by-one-thread-first.md."""
    with unobserved():
        for dtype in (torch.float32, torch.float64):
            torch.ones(1, dtype=dtype, device="cpu").sqrt()


def leave_to_script(request: Request | None = None) -> None:
    """The script begins a session itself: one that was begun in its place ends.

    Raises what is wrong with the words of `request`, with nothing changed.
    """
    if RUNTIME.finder is not None:
        if request is not None:
            wanted(request).check()
        RUNTIME.finder.give_way()


def leave_annotations_to_script() -> None:
    """The script annotates its model itself."""
    if RUNTIME.finder is not None:
        RUNTIME.finder.script_annotates()


def end_profile() -> Plan:
    """See `sentinel.end_profile`."""
    _end_what_was_cut_short()
    return _running("end_profile()", "call sentinel.start_profile() before the step").end_profile()


def stop() -> Run:
    """See `sentinel.stop`."""
    ended = _end_what_was_cut_short()
    if isinstance(ended, PassiveSession):
        return ended.stop()
    last = current()
    if last is not None and last.ended_by_itself:
        return last.stop()
    return _running("stop()", "call sentinel.start_profile() first").stop()


def end_applying() -> None:
    """End a session that applies a plan, as the end of the program will: then all that it did is counted."""
    last = current()
    if last is not None and last.applying and RUNTIME.sink is last and not last.away:
        last.stop()


def report(*, bounded: bool = True) -> Report:
    """See `sentinel.report`; not `bounded`: without what takes seconds to find."""
    _end_what_was_cut_short()
    last = _last()
    if last is None:
        raise UsageError("report(): nothing was profiled yet", "call sentinel.start_profile() and end_profile() first")
    return last.report(bounded=bounded)


def _end_what_was_cut_short() -> BegunSession | None:
    """An interrupt may have come within a call of ours, and another one as that was undone. The session that has ended
    now, if one has."""
    ending = RUNTIME.sink
    if not isinstance(ending, Session | PassiveSession) or not ending.cut_short:
        return None
    ending.finish_ending()
    return ending


def _last() -> BegunSession | None:
    return cast("BegunSession | None", RUNTIME.last)  # only start_profile sets it


def _running(what: str, remedy: str) -> BegunSession:
    last = _last()
    if last is None or RUNTIME.sink is not last:
        raise UsageError(f"{what}: no session is running", remedy)
    return last


def end_at_exit() -> None:
    """Whatever ended the program, stock allocation is back before the interpreter goes.

    A thread that still trains keeps its session: it ends with the process.
    """
    _end_what_was_cut_short()
    last = current()
    if isinstance(RUNTIME.sink, PassiveSession) or (last is not None and RUNTIME.sink is last and not last.away):
        RUNTIME.sink.stop()


if not RUNTIME.ends_at_exit:
    atexit.register(end_at_exit)


def _watch_for_the_end() -> None:
    """Ctrl-C that nobody catches ends the session also where the interpreter lives on: at a prompt. An error does not,
    such as a misspelt name there; one that ends a script ends the session by `atexit`."""
    if RUNTIME.shows_uncaught:
        return
    shown = sys.excepthook

    def end_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            end_at_exit()
        shown(kind, error, trace)

    sys.excepthook = end_and_show
    RUNTIME.shows_uncaught = True
