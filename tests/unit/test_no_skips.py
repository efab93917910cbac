"""The option that keeps CI from passing by skipping."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [*command, "--rootdir", str(folder), *arguments, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """One test that passes, and one that is skipped for want of a flux capacitor."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_runs(): pass\ndef test_skips(): pytest.skip('needs flux capacitor: build one')\n"
    )
    return tmp_path


def test_a_skip_passes_when_nothing_is_required(suite: Path) -> None:
    assert _pytest(suite).returncode == 0


def test_a_skip_for_something_else_passes(suite: Path) -> None:
    assert _pytest(suite, "--no-skips", "torch,flux").returncode == 1
    assert _pytest(suite, "--no-skips", "torch,capacity").returncode == 0


def test_a_skip_for_a_required_capability_fails_and_is_named(suite: Path) -> None:
    done = _pytest(suite, "--no-skips", "torch,flux capacitor")
    assert done.returncode == 1
    assert "flux capacitor: build one" in done.stdout.split("ruled out by --no-skips")[1]
    assert "1 passed, 1 skipped" in done.stdout
