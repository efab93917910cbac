"""The user's calls over one default session. Torch is needed from here on."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.errors import UsageError
from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.profiler import ticks
from sentinel.profiler.annotate import Annotation, annotate, as_list
from sentinel.reports import Report
from sentinel.session.request import Overrides, Request, overridden, set_overrides
from sentinel.session.session import Session
from sentinel.system.versions import require_tested

__all__ = [
    "Annotation",
    "Overrides",
    "Request",
    "annotate",
    "current",
    "end_profile",
    "made_by",
    "report",
    "set_overrides",
    "start_profile",
    "stop",
]

_last: Session | None = None
_make: Callable[[Request, Sequence[nn.Module], Sequence[Optimizer]], Session] = Session


def made_by(factory: Callable[[Request, Sequence[nn.Module], Sequence[Optimizer]], Session]) -> None:
    """From now on `start_profile` begins what `factory` makes: so a measurement may watch a script's stock training."""
    global _make
    _make = factory


def current() -> Session | None:
    """The running session, or the last one; None before the first."""
    return _last


def start_profile(
    model: nn.Module | Sequence[nn.Module] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    request: Request | None = None,
) -> None:
    """See `sentinel.start_profile`."""
    global _last
    _end_what_was_cut_short()
    if ticks.sink is not None:
        doing = "profiling" if isinstance(ticks.sink, Session) and ticks.sink.profiling else "applying a plan"
        raise UsageError(
            f"start_profile(): a session is running already, and {doing}",
            "call sentinel.end_profile() to end its profiled step, or sentinel.stop() to end it",
        )
    require_tested(torch.__version__)
    models, optimizers = as_list(model, nn.Module, "model"), as_list(optimizer, Optimizer, "optimizer")
    session = _make(overridden(request or Request()), models, optimizers)
    before, _last = _last, session
    try:
        session.open()
    except BaseException:
        if ticks.sink is not session:  # else it is whole, or is ended by the next call: the interrupt came after it
            _last = before
        raise
    _watch_for_the_end()


def end_profile() -> Plan:
    """See `sentinel.end_profile`."""
    _end_what_was_cut_short()
    session = _running("end_profile()", "call sentinel.start_profile() before the step")
    return session.end_profile()


def stop() -> Run:
    """See `sentinel.stop`."""
    _end_what_was_cut_short()
    if _last is not None and _last.ended_by_itself:
        return _last.stop()
    return _running("stop()", "call sentinel.start_profile() first").stop()


def end_applying() -> None:
    """End a session that applies a plan, as the end of the program will: then all that it did is counted."""
    if _last is not None and _last.applying and ticks.sink is _last and not _last.away:
        _last.stop()


def report() -> Report:
    """See `sentinel.report`."""
    _end_what_was_cut_short()
    if _last is None:
        raise UsageError("report(): nothing was profiled yet", "call sentinel.start_profile() and end_profile() first")
    return _last.report()


def _end_what_was_cut_short() -> None:
    """An interrupt may have come within a call of ours, and another one as that was undone."""
    if isinstance(ticks.sink, Session) and ticks.sink.cut_short:
        ticks.sink.finish_ending()


def _running(what: str, remedy: str) -> Session:
    if _last is None or ticks.sink is not _last:
        raise UsageError(f"{what}: no session is running", remedy)
    return _last


@atexit.register
def _end() -> None:
    """Whatever ended the program, stock allocation is back before the interpreter goes.

    A thread that still trains keeps its session: it ends with the process.
    """
    _end_what_was_cut_short()
    if _last is not None and ticks.sink is _last and not _last.away:
        _last.stop()


@functools.cache
def _watch_for_the_end() -> None:
    """What nobody catches, Ctrl-C included, ends the session also where the interpreter lives on: at a prompt."""
    shown = sys.excepthook

    def end_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _end()
        shown(kind, error, trace)

    sys.excepthook = end_and_show
