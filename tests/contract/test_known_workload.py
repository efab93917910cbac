"""The C workload: every tracker that this host allows reports exactly its touches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.profiler.pages import TRACKERS

SOURCE = Path(__file__).parents[2]
_RUN = SOURCE / "tools" / "known_workload" / "run.py"
# one touch more than the workload's own table says
_ONE_MORE = f"""
import sys; sys.path.insert(0, {str(_RUN.parent)!r}); sys.argv = ["run.py", "pagemap"]
import run
own = run.expected
run.expected = lambda *rest: (own(*rest)[0] + run.Counter([500]), *own(*rest)[1:])
sys.exit(run.main())
"""


def _answer(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.needs("compiler")
def test_every_tracker_reports_exactly_the_known_touches() -> None:
    done = _answer(str(_RUN), *TRACKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert [result["tracker"] for result in results] == list(TRACKERS)
    for result in results:
        if "refused" not in result and "accesses by system calls" not in result["blind_to"]:
            assert result["touches"] == result["expected"] == 427


@pytest.mark.needs("compiler")
def test_a_touch_that_is_not_reported_is_noticed() -> None:
    done = _answer("-c", _ONE_MORE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)[0]["exact"] is False
