"""What interrupts a program, told from what goes wrong in ours: Python runs handlers of signals within any call."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType, FrameType


def is_interrupt(error: BaseException) -> bool:
    """Whether `error` is the program's, which is to get it: Ctrl-C, an exit, or what its handler of a signal raised.

    A preemption or a time limit is often an Exception. What tells it from a failure of ours is that its traceback leads
    through a handler, which Python calls with the signal's number and the frame that it interrupted. A handler that
    gives either name another value is known if it is still installed. One that is no Python code is not known.
    """
    if not isinstance(error, Exception):
        return True
    before, step = None, error.__traceback__
    while step is not None:
        if before is not None and _is_handler(step.tb_frame, before):
            return True
        before, step = step.tb_frame, step.tb_next
    return False


def let_through(error: BaseException) -> None:
    """Raises `error` if it is an interrupt: first of all where errors of a call that failed are caught."""
    if is_interrupt(error):
        raise error


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    if any(isinstance(number, int) and at is interrupted for number, at in pairwise(_given(frame))):
        return True
    return frame.f_code in _installed()


def _given(frame: FrameType) -> Iterator[object]:
    """The values that the positional arguments of a function have now."""
    code = frame.f_code
    if not code.co_argcount and not code.co_flags & _VARARGS:
        return
    held = frame.f_locals  # of a function that has ended
    yield from (held.get(name) for name in code.co_varnames[: code.co_argcount])
    if code.co_flags & _VARARGS:
        rest = held.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        yield from rest if isinstance(rest, tuple) else ()


_VARARGS = 4
"""inspect.CO_VARARGS, without what inspect imports."""


def _installed() -> set[CodeType]:
    """Of the handlers that there are now, as far as they are Python code."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return {code for handler in handlers if (code := _code_of(handler)) is not None}


def _code_of(handler: object) -> CodeType | None:
    """Of a function, a bound method or an object that is called."""
    methods = vars(type(handler)).get("__call__")
    found = (getattr(called, "__code__", None) for called in (handler, getattr(handler, "__func__", None), methods))
    return next((code for code in found if isinstance(code, CodeType)), None)
