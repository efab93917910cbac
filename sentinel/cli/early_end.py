"""A run that ends before its script does: by SIGTERM, or because as many steps were trained as were asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from sentinel.runtime import Observer
from sentinel.system.progress import say

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan


class Enough(SystemExit):
    """The script has trained as far as was asked for. Passes through the script as `sys.exit(0)` would."""

    def __init__(self) -> None:
        super().__init__(0)


def _end_the_script() -> NoReturn:
    """Or the thread that trains, where that is another than the main one: Python shows the traceback of a thread that
    ends by anything but SystemExit itself."""
    raise Enough if threading.current_thread() is threading.main_thread() else SystemExit(0)


class StepLimit(Observer):
    """Ends the script: after so many optimizer `steps`, or as soon as there is a plan (`dry`).

    `asked`: whether either was asked for.
    """

    def __init__(self, steps: int | None, *, dry: bool) -> None:
        self._left, self._dry, self._planned = steps, dry, False
        self._pid = os.getpid()
        self.asked = dry or steps is not None

    def plan_made(self, plan: Plan) -> None:
        """See Observer."""
        self._planned = not plan.provisional

    def plan_applied(self, plan: Plan, machine: Machine, ranges: object) -> None:
        """See Observer."""
        del plan, machine, ranges
        self._end_if_planned()

    def session_ended(self) -> None:
        """See Observer: so it is told where there is nothing to apply a plan to."""
        self._end_if_planned()

    def _end_if_planned(self) -> None:
        if self._dry and self._planned:
            self._dry = False
            _end_the_script()

    def stepped(self) -> None:
        """An optimizer has stepped."""
        if self._left is not None and os.getpid() == self._pid:
            self._left -= 1
            if not self._left:
                _end_the_script()


def before_sigterm(write: Callable[[], None]) -> Callable[..., AbstractContextManager[object]]:
    """From now on SIGTERM, which would end this process at once, makes it `write()` first; a second one ends it.

    Returns a context manager. In the main thread, a SIGTERM within its block waits for the block's end, and calls the
    argument instead of `write`: by default nothing, for a block that writes the report itself. A launcher that ends all
    ranks for one that was killed comes when the others, whose connections broke, write already; and a module that the
    block is importing cannot be used before its end.
    Nothing changes where the signal is handled or ignored already. A script's own handler takes the place of this one,
    also where it calls it; and forked children end as they would have.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return contextlib.nullcontext
    waits = came = False

    def end(write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # whatever the signal came into
            say(f"ended by SIGTERM; there is no report: {error}", wrong=True)
        finally:  # also where Ctrl-C comes while it writes
            os.kill(os.getpid(), signal.SIGTERM)

    def handler(_signal: int, _frame: FrameType | None) -> None:
        nonlocal came
        if signal.getsignal(signal.SIGTERM) is not handler:  # who took its place calls it, and may want to go on
            return
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, lambda *_: None)  # torch's raises where loaders' workers were ended too
        finally:
            came = True
            if not waits:
                end(write)

    @contextlib.contextmanager
    def waiting(then: Callable[[], None] = lambda: None) -> Iterator[None]:
        nonlocal waits
        if threading.current_thread() is not threading.main_thread():  # handlers run in that one, whatever is here
            yield
            return
        waits = True
        try:
            yield
        finally:
            waits = False
            if came:
                end(then)

    def forked() -> None:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handler)
    os.register_at_fork(after_in_child=forked)
    return waiting
