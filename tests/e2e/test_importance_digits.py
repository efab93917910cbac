"""The example on selection by loss, and the benchmark that tells what it saves and costs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import warm

pytestmark = [pytest.mark.needs("torch", "scikit-learn"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def _printed(tmp_path: Path, *command: str) -> str:
    done = warm.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_example_is_given_fewer_samples_and_learns(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "examples/09_importance.py")
    delivered = [int(number) for number in re.findall(r"(\d+) delivered", printed)]
    assert delivered[0] == 8 * 1797
    assert delivered[1] < 0.85 * delivered[0]
    assert min(float(share) for share in re.findall(r"([\d.]+)% right", printed)) > 90


@pytest.mark.long  # one mode, by the example: above
def test_the_benchmark_tells_of_each_mode(tmp_path: Path) -> None:
    told = json.loads(_printed(tmp_path, "-m", "benchmarks.importance", "--seeds", "2", "--epochs", "9"))
    rows = {(row["noise"], row["mode"]): row for row in told["results"]["rows"]}
    assert len(rows) == 12
    for noise in (0.0, 0.1, 0.3):
        full, selected, substituted = (rows[noise, mode] for mode in ("full", "select", "substitute"))
        assert full["delivered"] == 1.0
        assert selected["delivered"] < 0.95
        assert selected["hits"] > selected["never_evict_hits"]
        assert full["substituted"] == selected["substituted"] == 0 < substituted["substituted"]
