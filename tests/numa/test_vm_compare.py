"""Placements compared on two real nodes: each does what its name says, all train the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.files import save

ROOT = Path(__file__).parents[2]
NAMES = ("sentinel", "all-fast", "all-slow", "first-touch", "interleave")


@pytest.mark.needs("two nodes", "root", "torch", "native")
@pytest.mark.long  # what a child does: test_executed_parts.py; what is on which node: test_engine_on_nodes.py
@pytest.mark.slow
@pytest.mark.usefixtures("no_balancing")
def test_every_placement_is_what_its_name_says_and_trains_the_same_bits(tmp_path: Path) -> None:
    """Planned for slow memory that is dear to use and not so dear to move, so that the plan moves."""
    fast = TierSpec("dram", "described", 64 << 30, 100.0, 10**11, 10**11)
    slow = TierSpec("far", "described", 256 << 30, 20_000.0, 2 * 10**9, 2 * 10**9)
    save(Machine("far", (fast, slow), (Link(0, 1, 2 * 10**9), Link(1, 0, 2 * 10**9))), tmp_path / "machine.json")
    words = ["compare", "--slow", "numa:1", "--fast", "20%", "--tracker", "ops", "--policies", ",".join(NAMES)]
    words += ["--machine", str(tmp_path / "machine.json"), "--warm-up", "3", "--measure", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", *words, "--executed", "tests/numa/vm_job.py", "7"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = {row["name"]: row for row in told["rows"]}
    assert tuple(rows) == NAMES
    assert all(row["same_losses"] and row["same_parameters"] for row in rows.values()), rows
    share = {name: row["served_share"] for name, row in rows.items()}
    assert share["all-fast"] > 0.97
    assert share["all-slow"] < 0.2
    assert share["all-slow"] < share["first-touch"] < 0.8
    assert share["sentinel"] > share["interleave"]  # of so small a job first touch serves as much, 0.77 to 0.78 both
    for name in ("first-touch", "interleave"):
        wanted = told["fast_bytes"] + told["beside_bytes"]
        assert abs(rows[name]["left_bytes"] - wanted) <= 1 << 20
        assert abs(rows[name]["mean_left_bytes"] - wanted) <= 1 << 20
        assert rows[name]["migrated_pages"].keys() <= {"compaction"}  # which moves pages about within a node
    moved = [sum(step.values()) for step in rows["sentinel"]["migrated_pages_by_step"]]
    assert len(moved) >= 4
    assert 0 < sum(moved) < sum(rows["sentinel"]["migrated_pages"].values())  # which has the first filling too
    assert rows["sentinel"]["later_migrated_bytes"] > 0
    ours = rows["sentinel"]["ours"]
    assert ours["claimed_pages"] == ours["witness_pages"] > 100
    assert ours["residency_share"] == 1  # none of its migrations is late: see the job
    assert ours["managed_fast_peak_bytes"] <= ours["budget_bytes"]
