"""What a benchmark has started is not called others' load, whether it runs, has ended or was left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BURNT_S = 0.2
"""Of processor time, in each of two processes: more than ten of the kernel's ticks."""

BURNS = f"""
import time
while time.process_time() < {BURNT_S}:
    pass
print("done", flush=True)
"""
STARTS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BURNS + "input()"!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
{BURNS}
input()
"""
WATCHES = f"""
import json, os, subprocess, sys
from benchmarks import _bench
from sentinel.system import process_tree

_bench.adopt_orphans()
began = _bench.tree_s(os.getpid())
process = subprocess.Popen([sys.executable, "-c", {STARTS!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdout.readline()
below = process_tree.tree(os.getpid(), process_tree.processes())[1:]
told = [_bench.tree_s(process.pid), _bench.tree_s(os.getpid()) - began]
_bench.end_tree(process)
told.append(_bench.tree_s(os.getpid()) - began)
print(json.dumps([len(below), told, process_tree.tree(os.getpid(), process_tree.processes())[1:]]))
"""


def test_what_a_benchmark_has_started_is_its_own() -> None:
    """A process and one that it has started have used processor time: while they run, and once both were killed."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHES], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    running, spent, left = json.loads(done.stdout)
    assert running == 2
    assert all(seconds >= 2 * BURNT_S - 0.1 for seconds in spent), spent
    assert not left
