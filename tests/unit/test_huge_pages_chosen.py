"""A benchmark sets the host's choice about huge pages, and takes it back whatever happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks import _huge_pages


@pytest.fixture
def enabled(tmp_path: Path) -> Path:
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never")
    return path


def test_the_choice_holds_within_and_no_longer(enabled: Path) -> None:
    with _huge_pages.chosen("always", enabled):
        assert enabled.read_text() == "always"
    assert enabled.read_text() == "madvise"
    with _huge_pages.chosen("as-is", enabled):
        assert enabled.read_text() == "madvise"


def test_it_is_taken_back_after_an_error_and_after_sigterm(enabled: Path) -> None:
    with pytest.raises(KeyboardInterrupt), _huge_pages.chosen("always", enabled):
        raise KeyboardInterrupt
    assert enabled.read_text() == "madvise"
    enabled.write_text("[never] madvise always")
    with pytest.raises(SystemExit), _huge_pages.chosen("always", enabled):
        os.kill(os.getpid(), signal.SIGTERM)
    assert enabled.read_text() == "never"


def test_where_it_cannot_be_set_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no transparent huge pages"), _huge_pages.chosen("always", tmp_path / "none"):
        raise AssertionError
