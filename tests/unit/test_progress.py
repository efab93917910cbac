"""Long work says that it goes on; short work says nothing."""

from __future__ import annotations

import inspect
import itertools
import logging
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from sentinel.system import progress
from tests.processes import LONGEST_S


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.telling("being quick"):
        pass
    assert capsys.readouterr() == ("", "")


def test_long_work_says_what_it_is_and_how_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "AGAIN_SECONDS", 0.0)
    clock = itertools.count(7)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    asked: list[str] = []
    twice = threading.Event()

    def half() -> str:
        asked.append("half of it")
        if len(asked) == 3:
            twice.set()
        return asked[-1]

    with progress.telling("being slow", half):
        assert twice.wait(LONGEST_S)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("".join(f"sentinel: being slow (half of it), {n} s so far\n" for n in (1, 2)))


def test_what_fails_ends_the_telling() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), progress.telling("failing"):
        raise ZeroDivisionError
    assert set(threading.enumerate()) <= before


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
        left.join(LONGEST_S)  # it may be on its way out
    assert set(threading.enumerate()) <= before


AT_THE_END = """
import atexit, weakref
from sentinel.system import progress
def end():
    with progress.telling("ending"):
        pass
    print("ended")
class Held: pass
atexit.register(end)
held = Held()
weakref.finalize(held, print, "finalized")  # whatever comes after that at exit meets finalizers that do nothing
"""


def test_work_ends_also_once_python_has_run_its_finalizers() -> None:
    """As a session does that a script left open: the telling was never told, and the process never ended."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=LONGEST_S, check=True
    )
    assert done.stdout.split() == ["finalized", "ended"]


def said(handler: logging.Handler, level: int = logging.INFO) -> None:
    """Two sentences, heard by `handler`."""
    logger = logging.getLogger(progress.LOGGER)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # pytest's own handlers are the root's
    try:
        progress.say("a step is watched")
        progress.say("it failed", wrong=True)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def test_what_a_terminal_handler_shows_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    said(shown := logging.StreamHandler(sys.stderr))
    assert shown.level == logging.NOTSET
    assert capsys.readouterr() == ("", "a step is watched\nit failed\n")


def test_under_run_nothing_is_logged_to_the_stdout_of_the_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STDOUT_IS_THE_SCRIPTS", True)
    said(logging.StreamHandler(sys.stdout))
    assert capsys.readouterr() == ("", "sentinel: a step is watched\nsentinel: it failed\n")


def test_what_goes_to_a_file_is_shown_as_ever(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = logging.FileHandler(tmp_path / "log")
    kept.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    said(kept)
    kept.close()
    assert (tmp_path / "log").read_text() == "sentinel INFO a step is watched\nsentinel WARNING it failed\n"
    assert capsys.readouterr().err == "sentinel: a step is watched\nsentinel: it failed\n"


def test_what_the_program_does_not_log_is_shown_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    said(logging.StreamHandler(sys.stderr), logging.WARNING)
    assert capsys.readouterr().err == "sentinel: a step is watched\nit failed\n"


def test_without_handlers_nothing_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Logging's last resort shows warnings that no handler takes: that would be twice."""
    done = subprocess.run(
        [sys.executable, "-c", "import logging; from sentinel.system import progress; progress.say('x', wrong=True)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert (done.stdout, done.stderr) == ("", "sentinel: x\n")


def test_a_handler_that_fails_costs_a_line_and_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("full")

    said(Failing())
    assert capsys.readouterr().err == "sentinel: a step is watched\nsentinel: it failed\n"


def test_the_page_says_how_to_log_it() -> None:
    page = Path(__file__).parents[2] / "docs" / "loops.md"
    (program,) = [text for text in page.read_text().split("```python\n") if text.startswith("import logging")]
    said = "from sentinel.system import progress; progress.say('a step is watched')"
    done = subprocess.run(
        [sys.executable, "-c", f"{program.partition('```')[0]}\n{said}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(" sentinel a step is watched\n")


def test_work_goes_on_where_no_thread_can_tell_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter ends, from Python 3.12 on."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with progress.telling("planning"):
        done.append(1)
    assert done == [1]
