"""Long work says that it goes on; short work says nothing."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from types import FrameType
from typing import Any

import pytest

from sentinel.system import progress


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.telling("being quick"):
        pass
    assert capsys.readouterr() == ("", "")


def test_long_work_says_what_it_is_and_how_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    asked = threading.Event()

    def half() -> str:
        asked.set()
        return "half of it"

    with progress.telling("being slow", half):
        assert asked.wait(60)
    assert capsys.readouterr() == ("", "sentinel: being slow (half of it), 0 s so far\n")


def test_what_fails_ends_the_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), progress.telling("failing"):
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_warning_from_within_a_step_never_raises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        progress.warn("it went wrong", stacklevel=1)
        monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
        progress.warn("it went wrong", stacklevel=1)
    assert capsys.readouterr().err == "sentinel: it went wrong\n" * 2
    assert [str(each.exc_value) for each in told] == ["it went wrong"]
    with pytest.warns(RuntimeWarning, match="it went wrong") as warned:
        progress.warn("it went wrong", stacklevel=1)
    assert warned[0].filename == __file__


LINES, FIRST = inspect.getsourcelines(progress.telling)
CODE = inspect.unwrap(progress.telling).__code__


def interrupted_at(number: int) -> bool:
    """Whether an interrupt came at line `number` of `telling`."""
    came = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not CODE:
            return trace if event == "call" else None
        if event == "line" and frame.f_lineno == number and not came:
            came.append(True)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with progress.telling("being interrupted"):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return bool(came)


def test_an_interrupt_at_any_line_leaves_no_thread_that_goes_on_telling() -> None:
    before = set(threading.enumerate())
    reached = [number for number in range(FIRST, FIRST + len(LINES)) if interrupted_at(number)]
    assert len(reached) > 6
    for left in set(threading.enumerate()) - before:
        left.join(10)  # it may be on its way out
    assert set(threading.enumerate()) <= before
