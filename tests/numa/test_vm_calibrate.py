"""Calibration and CPUs in machines that hosts rarely are: CXL memory, and CPUs on both nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.system import processor
from tools.numa_vm.packages import Missing, kernel

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tools" / "numa_vm" / "run"
pytestmark = pytest.mark.slow
SENTINEL = ".venv/bin/python -m sentinel"


@pytest.fixture(autouse=True, scope="module")
def machine() -> None:
    if processor.is_emulated():
        pytest.skip("boots a machine of its own, and this is one")
    if not os.environ.get("SENTINEL_NUMA_VM"):
        pytest.skip("needs numa_vm: SENTINEL_NUMA_VM=1, since it boots a machine in software for minutes")
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("needs numa_vm: tools/numa_vm/install")
    try:
        kernel("6.12")
    except Missing as problem:
        pytest.skip(f"needs numa_vm: {problem}")


def _vm(*words: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *words, "--timeout", "840", "--", "sh", "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)


@pytest.mark.long  # CXL memory as a node: test_vm.py; what a calibration of two nodes says: test_calibrate_on_nodes.py
def test_cxl_memory_is_calibrated_and_ordered_by_the_kernels_tiers() -> None:
    words = "--quick --size 4MiB --threads 1 --json"
    done = _vm("--cxl", "--memory", "1G,256M", script=f"{SENTINEL} calibrate {words} -o /tmp/m.json && cat /tmp/m.json")
    if "no volatile CXL memory" in done.stderr:
        pytest.skip(f"needs CXL in QEMU: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    told, end = json.JSONDecoder().raw_decode(done.stdout)
    machine = json.loads(done.stdout[end:])["machine"]
    assert told["machine"]["decided_by"] == machine["decided_by"] == "memory_tiering"
    assert [tier["node"] for tier in machine["tiers"]] == [0, 1]
    assert all(tier["source"].startswith("emulated machine") for tier in machine["tiers"])
    assert told["conditions"]["emulated"] is True  # though it hides its hypervisor
    assert {(move["source"], move["target"]) for move in told["moves"]} == {(0, 1), (1, 0)}


_WHERE = """
import os, sys
from sentinel.cli.run import bind_cpus  # what `sentinel run` does before all else; the rest of it imports torch
from sentinel.system.topology import topology
for cpus in (None, "node:1"):
    bind_cpus(cpus)
    host = topology()
    print(sorted(os.sched_getaffinity(0)), host.spans, host.fast, host.slower)
"""


def test_a_process_on_two_nodes_is_told_and_bound_to_the_one_that_is_asked_for() -> None:
    done = _vm("--cpus-on-both", script=f".venv/bin/python - <<'END'\n{_WHERE}END\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0, 1] (0, 1) 0 (1,)", "[1] (1,) 1 (0,)"], done.stderr
    assert done.stderr.count("this process may run on CPUs of nodes 0, 1") == 1  # not once it is bound
    assert "sentinel run --cpus node:0" in done.stderr
