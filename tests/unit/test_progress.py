"""Long work says that it goes on; short work says nothing."""

from __future__ import annotations

import threading

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
