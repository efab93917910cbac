"""Torch under page trackers: known touches of tensors, agreement on a GPT-2 step, and the same bits as stock."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.profiler.pages import TRACKERS, obstacle

SOURCE = Path(__file__).parents[2]
pytestmark = [pytest.mark.needs("torch", "transformers", "compiler"), pytest.mark.slow]


@functools.cache
def _told(tracker: str) -> dict[str, Any]:
    """What the workload tells in a process of its own: with another seed of addresses, too."""
    program = SOURCE / "tools" / "known_workload" / "torch_touches.py"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(program), tracker]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(params=list(TRACKERS))
def tracker(request: pytest.FixtureRequest) -> str:
    refused = obstacle(request.param)
    if refused is not None:
        pytest.skip(f"needs tracker {request.param}: {refused}")
    return str(request.param)


def test_known_touches_of_tensors(tracker: str) -> None:
    known = _told(tracker)["known"]
    assert known["tensors"] == dict.fromkeys(["updated", "read", "partly", "rows"], True)
    assert known["values_right"]
    assert known["lost"] == 0


def test_a_watched_step_changes_no_bit(tracker: str) -> None:
    stock, watched = _told("stock")["gpt2"], _told(tracker)["gpt2"]
    assert watched["losses"] == stock["losses"]
    assert watched["parameters"] == stock["parameters"]


def test_readers_agree_on_a_gpt2_step(tracker: str) -> None:
    reference, mine = _told("pagemap")["gpt2"], _told(tracker)["gpt2"]
    assert mine["touches"] > 1000
    assert mine["touched"] == reference["touched"]
    if "written" in mine:
        writers = [name for name in ("ebpf", "uffd") if obstacle(name) is None]
        assert {_told(name)["gpt2"]["written"] for name in writers} == {mine["written"]}
