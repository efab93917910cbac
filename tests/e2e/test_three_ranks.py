"""The example on three ranks: losses don't depend on peers, and with them chunks are read less often."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("torch", "scikit-learn")

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "10_three_ranks.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.long  # ranks that read less with one plan: test_data_peers.py; each as a process: test_data_page_runs.py
@pytest.mark.needs("redis-server")
def test_training_is_the_same_and_chunks_are_read_less_often(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "the same bit for bit" in done.stdout
    found = re.search(r"each for itself ([\d.]+), one plan ([\d.]+)", done.stdout)
    assert found
    assert float(found[2]) < float(found[1])


def test_without_a_server_it_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert "Traceback" not in done.stderr


ENDS = """
import contextlib, os, runpy, sys, time
from pathlib import Path
ours = runpy.run_path(sys.argv[1])
torch, dist = ours["torch"], ours["dist"]
def threads():
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found += "gloo" in (task / "comm").read_text()
    return found
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meeting", rank=0, world_size=1)
for _ in range(2000):  # it has its name once it runs
    if threads():
        break
    time.sleep(0.1)
print(threads())
torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
dist.destroy_process_group()
for _ in range(2000):  # the kernel lists a thread for a moment after it was joined
    if not threads():
        break
    time.sleep(0.1)
print(threads())
"""


@pytest.mark.slow
def test_gloos_threads_end_with_the_process_group(tmp_path: Path) -> None:
    """One that drops a tensor while the interpreter ends would abort the process."""
    command = [sys.executable, "-c", ENDS, str(ROOT / "examples" / "10_three_ranks.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    during, after = map(int, done.stdout.split())
    assert during > 0
    assert after == 0
