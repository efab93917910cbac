"""Two thousand steps with migrations in every one: nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.migration.run_recorder import FIRST_STEPS, LAST_STEPS, MAX_EVENTS

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
MIB = 1 << 20


@pytest.mark.needs("torch", "native", "compiler")
@pytest.mark.slow
def test_two_thousand_steps_leave_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--steps", "2000"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["emulated"]
    assert told["steps"] == 2000
    assert told["kept_steps_with_migrations"] == told["kept_steps"] == FIRST_STEPS + LAST_STEPS
    assert told["migrations"] > 2000
    first, middle, last = told["looks"]
    assert [look["step"] for look in told["looks"]] == [200, 1100, 2000]
    for what in ("managed_bytes", "unmanaged_bytes", "descriptors", "threads"):
        assert last[what] == first[what], what
    assert last["mappings"] <= first["mappings"] + 8  # malloc's own come and go
    assert last["objects"] <= first["objects"] + 100
    # Eight bytes for each of the hundred thousand migrations between would show here.
    assert last["resident_bytes"] - middle["resident_bytes"] < MIB
    assert last["resident_bytes"] - first["resident_bytes"] < 8 * MIB  # the heap has its last shape by then
    assert told["rows_kept"]["events"] <= MAX_EVENTS
