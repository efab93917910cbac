"""The example on training data: killed and gone on with, its losses are the same bit for bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import warm

pytestmark = [pytest.mark.needs("torch", "scikit-learn"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_a_run_that_was_killed_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    done = warm.run(
        [sys.executable, str(ROOT / "examples" / "07_tar_digits.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "killed after step" in done.stdout
    assert "the same bit for bit" in done.stdout
    losses = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(set(losses)) > 50
