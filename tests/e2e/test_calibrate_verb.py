"""`sentinel calibrate` and `sentinel run --cpus` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli import doctor, main
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.files import load_machine
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology, topology
from tests.processes import LONGEST_S, started

GIB = 1 << 30
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("native")


def _sentinel(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sentinel", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600)


def test_one_node_gives_a_machine_with_a_declared_tier_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    words = ("--quick", "--size", "8MiB", "--threads", "1", "--slow", "emulated:cxl-asic-x8", "--json", "-o", str(file))
    done = _sentinel("calibrate", *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    machine = load_machine(file)
    assert told["machine"]["name"] == machine.name == "calibrated, emulated:cxl-asic-x8"
    assert [(tier.kind, tier.measured) for tier in machine.tiers] == [("node", True), ("emulated", False)]
    assert [node["node"] for node in told["nodes"]] == [topology().fast]
    read = told["nodes"][0]["read"]["1"]
    assert read["lowest"] <= read["median"] <= read["highest"]
    assert read["rounds"] == 3
    assert f"machine written to {file}" in done.stderr
    assert "calibrating 5/5: copying beside compute" in done.stderr
    assert [(each["node"], each["to_fast"]) for each in told["moving"]] == [(None, True), (None, False)]
    for link, each in zip(sorted(machine.links, key=lambda x: x.target), told["moving"], strict=True):
        assert link.measured
        assert link.bandwidth_bytes_per_s <= max(each["rate"]["median"], 1)
        assert link.lost_ns_per_kib == round(each["lost_ns_per_kib"]["median"], 1)
        assert link.lost_ns_per_move == round(each["lost_ns_per_move"]["median"], 1)


def test_a_table_names_what_was_measured(tmp_path: Path) -> None:
    words = ("--quick", "--size", "8MiB", "--threads", "1", "--nodes", str(topology().fast))
    done = _sentinel("calibrate", *words, "-o", str(tmp_path / "machine.json"))
    assert done.returncode == 0, done.stderr
    heads = [line.split() for line in done.stdout.splitlines()]
    assert ["node", "tier", "threads", "read", "write", "mixed"] in heads
    assert ["node", "latency", "loaded", "readers", "pages"] in heads
    assert ["beside", "compute", "moved", "lost", "a", "MiB", "lost", "a", "migration"] in heads
    assert sum(words[:1] == ["copies,"] for words in heads) == 2
    assert "cxl-asic-x8, declared, not measured" in done.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--slow", "nothing"], "names no slow tier"),
        (["--nodes", "x"], "names no nodes"),
        (["--nodes", "99"], "no node 99 with memory"),
        (["--threads", "0"], "is not a number of threads"),
        (["--threads", "100000"], "CPUs of the fast node"),
        (["--size", "1MB"], "1MB"),
        (["--size", "64KiB"], "too little to measure"),
        (["--cpus", "node:99"], "no node 99"),
        (["--cpus", "8000"], "CPUs 8000 are not online"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code: object
    try:
        code = main(["calibrate", *words])
    except SystemExit as left:  # as argparse ends
        code = left.code
    said = capsys.readouterr().err
    assert code == 2, said
    assert why in said
    assert "calibrating" not in said


def test_what_has_no_room_is_refused() -> None:
    done = _sentinel("calibrate", "--size", "1024TiB")
    assert done.returncode == 1
    assert "or less, or free memory there" in done.stderr
    assert "calibrating 1" not in done.stderr


WITHOUT_END = """
import sys
from dataclasses import replace
from sentinel import calibrate
from sentinel.cli import main
plan_measurements = calibrate.plan_measurements
calibrate.plan_measurements = lambda *host, **asked: replace(plan_measurements(*host, **asked), rounds=10**9)
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupt_writes_nothing(tmp_path: Path) -> None:
    """Of a calibration that would not be over before it comes, however long that takes."""
    file = tmp_path / "machine.json"
    command = [sys.executable, "-c", WITHOUT_END, "calibrate", "--nodes", "0", "--size", "8MiB", "-o", str(file)]
    with started(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "calibrating 1/" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
        assert running.wait(LONGEST_S) == 130
    assert "sentinel: interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


_SCRIPT = """
import os, torch
torch.ones(512, 512) @ torch.ones(512, 512)
masks = {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}
print(torch.get_num_threads(), sorted(masks))
"""


@pytest.mark.needs("torch")
def test_a_run_is_bound_before_torch_counts_cpus_and_starts_threads(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    cpu = max(os.sched_getaffinity(0))
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-m", "sentinel", "run", "--cpus", str(cpu), str(script)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout == f"1 [({cpu},)]\n", done.stderr


def test_a_run_on_cpus_that_are_not_there_does_not_begin(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('began')\n")
    for words, code, why in (
        ("node:99", 2, "this host has no node 99"),
        ("none", 2, "names no CPUs"),
        ("8000", 2, "CPUs 8000 are not online"),
        ("0,99", 2, "CPUs 99 are not online"),
    ):
        done = _sentinel("run", "--cpus", words, str(script), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_doctor_shows_what_calibration_found_and_where_the_process_runs() -> None:
    near = TierSpec("fast", "node", GIB, 91.0, 2 * GIB, GIB, node=0, measured=True, source="measured on a Tuesday")
    far = TierSpec("node1", "node", GIB, 207.0, GIB, GIB, node=1, measured=True, source="measured on a Tuesday")
    machine = Machine("calibrated", (near, far), (Link(0, 1, GIB), Link(1, 0, GIB)))
    nodes = (Node(0, (0,), GIB, GIB, read_latency_ns=80), Node(1, (), GIB, GIB), Node(2, (), GIB, GIB))
    host = Topology(nodes, 0, (1,), "measurement", (0,), forbidden=(2,))
    rows = [row[4:] for row in doctor.node_rows(host, machine)[1:]]
    assert rows[0] == ("91 ns", "2.00 GiB/s", "calibration", "fast")
    assert rows[1] == ("207 ns", "1.00 GiB/s", "calibration", "slower")
    assert rows[2] == ("-", "-", "-", "forbidden by the cpuset")
    assert doctor.node_rows(host)[1][4:] == ("80 ns", "-", "HMAT", "fast")
    assert doctor.speeds(host, machine) == ["speeds: measured on a Tuesday"]
    assert "`sentinel calibrate` measures them" in doctor.speeds(host, None)[0]
    assert "node 1 (decided by measurement)" in doctor.slow_memory(host)
