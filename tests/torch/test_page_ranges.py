"""Hot and cold page ranges of real embedding tables: found by page trackers, applied, and right in later steps."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.profiler.pages import obstacle

ROOT = Path(__file__).parents[2]
LATER = (4, 7)
pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]


@functools.cache
def told(*options: str) -> dict[str, Any]:
    """What a small DLRM tells of itself: four tables of 40,000 rows at half the fast memory, in a process of its own.

    `cells`: planned for this host, whose layer times are those of the run, and for a described machine, which has none.
    """
    job = ["--tables", "4", "--rows", "40000", "--fast", "50%", "--applied", "50%", "--machines", "cxl-m5"]
    job += ["--look", *map(str, LATER)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._ranged_step", *job, *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(params=["ebpf", "pagemap"])
def tracker(request: pytest.FixtureRequest) -> str:
    refused = obstacle(request.param)
    if refused is not None:
        pytest.skip(f"needs tracker {request.param}: {refused}")
    return str(request.param)


def test_training_with_a_ranged_plan_changes_no_bit(tracker: str) -> None:
    stock, ranged = told("--stock"), told("--tracker", tracker)
    assert ranged["tracker"] == tracker
    assert ranged["losses"] == stock["losses"]
    assert len(set(stock["losses"])) == len(stock["losses"]), "a loss that stands still proves nothing"


def test_tables_have_hot_and_cold_ranges(tracker: str) -> None:
    found = told("--tracker", tracker)["ranges"]
    assert {"tables.0.weight", "tables.1.weight"} <= set(found)
    for name, ranges in found.items():
        density = [touched / (stop - first) for first, stop, touched in ranges]
        assert len(ranges) >= 3, name
        assert density == sorted(density, reverse=True), f"{name}: its rows are in the order of their frequency"
        assert ranges[0][0] == 0
        assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))


def test_ranges_serve_more_than_whole_tensors_in_later_steps_too(tracker: str) -> None:
    answer = told("--tracker", tracker)
    here, cell = answer["cells"]
    ranged, whole = cell["ranged"], cell["whole"]
    assert ranged["planned"] > whole["planned"] + 0.05
    for step in map(str, LATER):
        assert ranged["observed"][step] > whole["observed"][step] + 0.05
        assert ranged["observed_tables"][step] > whole["observed_tables"][step] + 0.05
    assert max(ranged["fast_peak_bytes"], whole["fast_peak_bytes"]) <= cell["fast_bytes"]
    headline = answer["headline"]
    assert headline["fast_served_fraction_ranged"] == pytest.approx(here["ranged"]["planned"], abs=0.02)
    assert headline["fast_peak_bytes"] <= headline["fast_capacity_bytes"]


def test_rows_in_random_order_have_no_ranges(tracker: str) -> None:
    """Negative control: every page is as hot as any other, so both plans are one."""
    answer = told("--tracker", tracker, "--order", "shuffled")
    assert answer["ranges"] == {}
    for cell in answer["cells"]:
        assert cell["ranged"]["planned"] == cell["whole"]["planned"]
