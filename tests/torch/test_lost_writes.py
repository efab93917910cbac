"""Other threads' stores to managed memory survive the change of its backing; where they could not, it is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.profiler.pages import native_touch, obstacle  # noqa: E402
from tests import warm  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return warm.run([sys.executable, *arguments], env=environment, cwd=ROOT)


@pytest.mark.parametrize(
    "tracker", ["ops", "ebpf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("perf", "pagemap", "uffd"))]
)
def test_no_update_of_another_thread_is_lost(tracker: str) -> None:
    refused = None if tracker == "ops" else obstacle(tracker)
    if refused is not None:
        pytest.skip(f"needs tracker {tracker}: {refused}")
    if not native_touch.guarded():
        pytest.skip("needs userfaultfd, for faults inside system calls too: run as root")
    done = _run("-m", "benchmarks.lost_writes", "--rounds", "2", "--mib", "32", "--trackers", tracker)
    assert done.returncode in (0, 1), done.stderr
    seen = json.loads(done.stdout)["results"]["trackers"][tracker]
    assert seen["watched_by"] == [tracker]
    assert seen["lost"] == {"small": 0, "large": 0, "plain": 0}
    assert min(seen["made"].values()) > 0


def test_updates_that_are_lost_are_told() -> None:
    """Negative control: what is written between two copies of a buffer."""
    done = _run("-m", "benchmarks.lost_writes", "--rounds", "1", "--mib", "8", "--trackers", "ops", "--control")
    assert done.returncode == 0, done.stderr + done.stdout
