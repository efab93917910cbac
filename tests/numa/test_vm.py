"""tools/numa_vm: what it promises to those who call it, and that the machine is what it says."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes import LONGEST_S, started, until
from tools.numa_vm.hardware import Hardware
from tools.numa_vm.packages import Missing, kernel

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tools" / "numa_vm" / "run"


def _missing() -> str:
    if not os.environ.get("SENTINEL_NUMA_VM"):
        return "SENTINEL_NUMA_VM=1, since it boots a machine in software for minutes"
    if not shutil.which("qemu-system-x86_64"):
        return "tools/numa_vm/install"
    try:
        kernel("6.12")
    except Missing as problem:
        return str(problem)
    return ""


def _vm(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RUN, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )


@pytest.fixture
def machine() -> None:
    if problem := _missing():
        pytest.skip(f"needs numa_vm: {problem}")


@pytest.mark.usefixtures("machine")
def test_a_command_runs_in_its_folder_with_its_shares_and_its_exit_code(tmp_path: Path) -> None:
    inside = tmp_path / "a folder, shared"
    inside.mkdir()
    (inside / "brought").write_text("there\n")
    (inside / "removed").write_text("stays here\n")
    script = (
        "pwd; cat brought; echo $WORD; cat /sys/devices/system/node/node?/cpulist; nproc; echo to stderr >&2;"
        "mkdir new; echo back >new/file; echo more >>brought; rm removed; exit 7"
    )
    words = ("--cpus-on-both", "--share", str(tmp_path), "--", "sh", "-c", script)
    done = _vm(*words, cwd=inside, WORD='it\'s & "passed"\non')
    assert done.stdout == f'{inside}\nthere\nit\'s & "passed" on\n0\n1\n2\n'
    assert done.stderr == "to stderr\n"
    assert done.returncode == 7
    assert (inside / "new" / "file").read_text() == "back\n"
    assert (inside / "brought").read_text() == "there\nmore\n"
    assert (inside / "removed").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("series", "passed"),
    [
        ("6.12", "19 passed in"),
        # the oldest kernel's own: tests/ebpf/test_other_kernels.py
        pytest.param("6.1", "18 passed, 1 skipped in", marks=pytest.mark.long),
    ],
)
def test_the_machine_does_what_we_rely_on_in_a_kernel(series: str, passed: str) -> None:
    try:
        kernel(series)
    except Missing as problem:
        pytest.skip(f"needs numa_vm {series}: {problem}")
    tests = ("tests/numa/test_vm_nodes.py", "tests/numa/test_vm_witness.py")
    pytest_in_it = (".venv/bin/python", "-m", "pytest", "-q", "--no-skips", "nodes,root,debugfs", *tests)
    done = _vm("--kernel", series, "--timeout", "840", "--", *pytest_in_it)
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed in done.stdout, done.stdout


@pytest.mark.usefixtures("machine")
def test_a_removable_node_goes_offline_and_comes_back_and_a_panic_is_no_success() -> None:
    script = (
        "cd /sys/devices/system/node; cat has_memory; cat node1/access0/initiators/read_latency;"
        "for to in offline online_movable; do"
        " for block in node1/memory[0-9]*; do echo $to >$block/state; done; cat has_memory; done;"
        "sleep 1; echo c >/proc/sysrq-trigger"  # what was said has left the machine by then
    )
    done = _vm("--removable", "--", "sh", "-c", script)
    assert (done.stdout, done.returncode) == ("0-1\n250\n0\n0-1\n", 125)
    assert "without a verdict" in done.stderr
    assert "panic" in done.stderr


@pytest.mark.usefixtures("machine")
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--", "sh", "-c", "echo ready; sleep 1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"  # streamed, not kept until the end
        assert list(tmp_path.iterdir()) != []
        assert _processes_with(str(tmp_path)) != []
        running.send_signal(signal.SIGINT)
        assert running.wait(LONGEST_S) == 130
    assert list(tmp_path.iterdir()) == []
    assert _processes_with(str(tmp_path)) == []


@pytest.mark.usefixtures("machine")
def test_a_killed_run_takes_its_machine_along(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--", "sleep", "1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started(command, cwd=ROOT, env=environment) as running:
        until(lambda: _processes_with(str(tmp_path)), 0.1)  # it boots
        running.kill()
        running.wait(LONGEST_S)
    until(lambda: not _processes_with(str(tmp_path)), 0.1)


@pytest.mark.usefixtures("machine")
def test_the_time_limit_ends_it() -> None:
    done = _vm("--timeout", "6", "--", "sleep", "1000")
    assert done.returncode == 124
    assert "--timeout" in done.stderr


@pytest.mark.usefixtures("machine")
def test_cxl_memory_is_a_node_in_a_slower_tier() -> None:
    move = "p = Pages(17); print(set(move_pages(p.addresses(), 1)), dict(p.nodes()), p.touch())"
    script = (
        "cat /sys/devices/system/node/has_memory /sys/devices/system/node/has_cpu;"
        "cat /sys/devices/virtual/memory_tiering/memory_tier*/nodelist | sort; ls /sys/bus/cxl/devices | grep mem;"
        f".venv/bin/python -c 'from tests.numa.vm_calls import *; {move}'"
    )
    done = _vm("--cxl", "--memory", "1G,256M", "--", "sh", "-c", script)
    if "no volatile CXL memory" in done.stderr:
        pytest.skip(f"needs CXL in QEMU: {done.stderr.strip()}")
    assert (done.stdout, done.returncode) == ("0-1\n0\n0\n1\nmem0\n{1} {1: 17} True\n", 0), done.stderr


def test_a_folder_that_is_not_there_in_the_guest_is_refused_before_it_boots() -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        done = _vm("--", "true", cwd=Path(elsewhere))
    assert done.returncode == 125
    assert f"--share {os.path.realpath(elsewhere)}" in done.stderr


def test_a_missing_program_is_named_with_its_package(tmp_path: Path) -> None:
    """With an empty path and a cache of its own, the first thing missed is apt's or QEMU's."""
    done = _vm("--", "true", PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 125
    assert "is missing: apt-get install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--memory", "512"], "not two amounts"),
        (["--memory", "512M,1T"], "not an amount"),
        (["--memory", "0M,1G"], "not an amount"),
        (["--kernel", "5.10"], "invalid choice"),
        (["--share", "/no/such/folder"], "not a folder"),
        ([], "COMMAND"),
    ],
)
def test_wrong_words_are_explained(words: list[str], why: str) -> None:
    done = _vm(*words, *(["--", "true"] if words else []))
    assert done.returncode == 2
    assert why in done.stderr


def test_a_cxl_device_has_a_size_that_decoders_can_address() -> None:
    with pytest.raises(ValueError, match="256M"):
        Hardware((1 << 30, 100 << 20), cxl=True)
    with pytest.raises(ValueError, match="exclude"):
        Hardware((1 << 30, 256 << 20), cxl=True, cpus_on_both=True)
    for other in ("cxl", "cpus_on_both"):
        with pytest.raises(ValueError, match="--removable excludes"):
            Hardware((1 << 30, 256 << 20), removable=True, **{other: True})


def _processes_with(word: str) -> list[str]:
    """The command lines of running machines that name a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "qemu" in line and word in line:
            found.append(line)
    return found
