"""`benchmarks/scale.py` at a GiB: the whole data path of `end_profile` is in what it times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs("torch", "native"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_each_part_of_the_path_is_timed_and_no_touch_is_lost() -> None:
    options = ("--sizes", "1GiB", "--rounds", "1", "--lengths-of", "docs/costs/scale.json")
    done = subprocess.run(
        [sys.executable, "benchmarks/scale.py", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (found,) = told["results"]["data_path"]["1GiB"]
    assert found["touches"] == 5 * (1 << 30) // 4096
    assert set(found["parts_s"]) == {"small_chunks", "rest_of_stop", "merge", "profile"}
    assert sum(found["parts_s"].values()) == pytest.approx(found["seconds"])
    # 1,200 tensors, and those that each of 130 layers needs for itself as one where operators run
    assert 1200 < found["tensors"] <= 1200 + 130
    assert found["events"] == 130 + 2 * 5 * 1200 + 2 * (found["tensors"] - 1200)
    assert found["extra_bytes"] > found["runs_bytes"]
    assert [each["tensors"] for each in told["results"]["migration"]] == [300, 3_000, 30_000, 100_000]
