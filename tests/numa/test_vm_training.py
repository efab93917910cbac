"""Training on two real nodes: nothing changes but where bytes are, and the witness saw what the engine claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.needs("two nodes", "root", "torch", "native")
@pytest.mark.slow
def test_training_is_bit_identical_and_every_page_that_moved_is_accounted_for() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.numa.vm_training"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    assert "training goes on" not in done.stderr  # what within a step was warned of, and raises nothing there
    assert "the report" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["same_losses"]
    assert told["same_parameters"]
    assert told["learned"]
    assert told["claimed_steps"] >= 4
    assert told["seen_pages"] == told["claimed_pages"] > 100
    assert told["seen_to_node_1"] > 50
    assert told["unaccounted"] == [0, 0]
    assert told["report"] == {"moved_pages": told["claimed_pages"], "witness_pages": told["seen_pages"]}
    assert told["verdict"].startswith("engine and witness agree")
