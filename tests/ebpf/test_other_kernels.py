"""The page trackers on Debian's kernels 6.1 and 6.12, booted in tools/numa_vm: the known workload, exactly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.profiler.pages import TRACKERS
from tools.numa_vm.packages import Missing, kernel

SOURCE = Path(__file__).parents[2]
WORKLOAD = SOURCE / "tools" / "known_workload" / "run.py"
TOUCHES = 427  # as the workload's table says
_SUITES = ("tests/contract/test_trackers.py", "tests/contract/test_granules.py", "tests/ebpf/test_page_touches.py")

pytestmark = [pytest.mark.needs("compiler"), pytest.mark.slow]


# What this host's own kernel reports, and the oldest, is enough for 6.12: tests/contract/test_known_workload.py.
@pytest.fixture(params=["6.1", pytest.param("6.12", marks=pytest.mark.long)])
def series(request: pytest.FixtureRequest) -> str:
    if not os.environ.get("SENTINEL_NUMA_VM"):
        pytest.skip("needs numa_vm: SENTINEL_NUMA_VM=1, since it boots a machine in software for minutes")
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("needs numa_vm: apt-get install qemu-system-x86 e2fsprogs")
    try:
        kernel(request.param)
    except Missing as problem:
        pytest.skip(f"needs numa_vm {request.param}: {problem}")
    return str(request.param)


def _vm(series: str, share: Path, *command: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, str(SOURCE / "tools" / "numa_vm" / "run"), "--kernel", series, "--timeout", "840"]
    return subprocess.run(
        [*run, "--share", str(share), "--", ".venv/bin/python", *command],
        cwd=SOURCE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )


def test_the_known_workload_is_reported_exactly(series: str, tmp_path: Path) -> None:
    library = tmp_path / "touches.so"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, str(WORKLOAD), "--build", str(library)], check=True, env=environment, timeout=850)
    done = _vm(series, tmp_path, str(WORKLOAD), "--library", str(library))
    assert done.returncode == 0, done.stdout + done.stderr
    told = {result["tracker"]: result for result in json.loads(done.stdout)}
    assert list(told) == list(TRACKERS)
    refused = {name for name, result in told.items() if "refused" in result}
    assert refused == ({"uffd"} if series == "6.1" else set())
    if refused:
        assert "Linux 6.4" in told["uffd"]["refused"]
    for name in set(told) - refused:
        assert (told[name]["touches"], told[name]["lost"], told[name]["exact"]) == (TOUCHES, 0, True)


@pytest.mark.long  # the workload above tells of both kernels
def test_the_contract_holds(series: str, tmp_path: Path) -> None:
    done = _vm(series, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-skips", "root", *_SUITES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "needs tracker ebpf" not in done.stdout
