"""What a signal's handler raised is told from what fails in the call that it interrupted."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from sentinel.core.ending import end_all
from sentinel.core.interrupts import is_interrupt

NUMBER = signal.SIGUSR1


class Preempted(Exception):
    pass


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = signal.getsignal(NUMBER)
    yield
    signal.signal(NUMBER, before)


def raised_by(handler: Callable[..., Any]) -> Exception:
    signal.signal(NUMBER, handler)
    try:
        signal.raise_signal(NUMBER)
    except Exception as error:
        return error
    raise AssertionError("the handler raised nothing")


def function(number: int, frame: FrameType | None) -> None:
    raise Preempted


def puts_back(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Preempted


def forgets(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Preempted


def deeper(*given: object) -> None:
    forgets(*given)  # type: ignore[arg-type]


class Methods:
    def bound(self, *_: object) -> None:
        raise TimeoutError

    def forgets(self, number: int, frame: object) -> None:
        del number, frame
        raise TimeoutError

    def __call__(self, number: int, frame: object) -> None:
        del number, frame
        raise TimeoutError


HANDLERS = [
    function,
    puts_back,
    forgets,
    deeper,
    lambda *_: int("none"),
    functools.partial(function),
    Methods().bound,
    Methods().forgets,
    Methods(),
]


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda each: getattr(each, "__qualname__", type(each).__name__))
def test_what_a_handler_raises_is_an_interrupt(handler: Callable[..., Any]) -> None:
    assert is_interrupt(raised_by(handler))


def test_what_is_no_exception_is_one() -> None:
    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(SystemExit())


def test_what_fails_by_itself_is_none() -> None:
    """Also in a function that is given a number and a frame, but not the one that calls it."""

    def fails(_number: int, _frame: FrameType | None = None) -> None:
        raise ValueError("ours")

    for given in [(1,), (1, None)]:
        with pytest.raises(ValueError, match="ours") as caught:
            fails(*given)
        assert not is_interrupt(caught.value)
    assert not is_interrupt(ValueError())


def test_it_comes_before_the_failures_around_it() -> None:
    def fail() -> None:
        raise ValueError

    signal.signal(NUMBER, function)
    with pytest.raises(Preempted):
        end_all(fail, lambda: signal.raise_signal(NUMBER), fail)
