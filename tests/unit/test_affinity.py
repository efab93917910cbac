"""Words for CPUs, and binding to them before threads start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.core.errors import UsageError
from sentinel.system.affinity import cpus_named, spanning
from sentinel.system.nodes import Node
from sentinel.system.topology import Topology

GIB = 1 << 30
HOST = Topology(nodes=(Node(0, (0, 1, 8, 9), GIB), Node(1, (2, 3), GIB), Node(2, (), GIB)), fast=0, spans=(0,))


@pytest.mark.parametrize(
    ("words", "cpus"),
    [
        ("node:0", {0, 1, 8, 9}),
        ("node:0,1", {0, 1, 2, 3, 8, 9}),
        ("node:0-1", {0, 1, 2, 3, 8, 9}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 1 , 2", {1, 2}),
    ],
)
def test_words_name_cpus(words: str, cpus: set[int]) -> None:
    assert cpus_named(words, HOST) == cpus


@pytest.mark.parametrize(
    "words", ["", "node:", "node:x", "x", "0-", "-1", "1,,2", "0-999999999", "3-1", "numa:0", "²", "9" * 5000]
)
def test_words_that_name_none_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match=r"names no CPUs; give CPUs such as"):
        cpus_named(words, HOST)


def test_a_node_that_is_not_there_or_has_no_cpus_is_named() -> None:
    with pytest.raises(UsageError, match=r"--cpus node:7: this host has no node 7 \(nodes: 0, 1, 2\)"):
        cpus_named("node:7", HOST)
    with pytest.raises(UsageError, match="node 2 has no CPUs, only memory; name a node with CPUs: 0, 1"):
        cpus_named("node:0,2", HOST)


def test_only_a_process_on_several_nodes_is_told_to_bind() -> None:
    assert spanning(HOST) == ""
    said = spanning(Topology(HOST.nodes, fast=0, spans=(0, 1)))
    assert "CPUs of nodes 0, 1" in said
    assert "--cpus node:0" in said


def _run(program: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False, timeout=600
    )


def test_all_threads_are_bound_and_those_that_they_start() -> None:
    program = """
import os, threading
from sentinel.system.affinity import bind_to
held, seen = threading.Event(), []
early = threading.Thread(target=lambda: (held.wait(), seen.append(os.sched_getaffinity(0))), daemon=True)
early.start()
cpu = max(os.sched_getaffinity(0))
bind_to({cpu})
late = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
late.start(); late.join(); held.set(); early.join()
assert seen == [{cpu}, {cpu}] and os.sched_getaffinity(0) == {cpu}, seen
"""
    done = _run(program)
    assert done.returncode == 0, done.stderr


def test_a_cpu_that_is_not_there_changes_nothing() -> None:
    program = """
import os
from sentinel.core.errors import UsageError
from sentinel.system.affinity import bind_to
before = os.sched_getaffinity(0)
for cpus in ({8000}, {min(before), 8000}):
    try:
        bind_to(cpus)
    except UsageError as error:
        assert "CPUs 8000 are not online (online: " in str(error), error
    else:
        raise SystemExit("not refused")
    assert os.sched_getaffinity(0) == before
"""
    done = _run(program)
    assert done.returncode == 0, done.stderr


def test_a_cpu_outside_the_cpuset_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-8191\n")  # as if it were there: the kernel still refuses it
    program = f"""
import os
from pathlib import Path
from sentinel.core.errors import CapabilityError
from sentinel.system.affinity import bind_to
try:
    bind_to({{min(os.sched_getaffinity(0)), 8000}}, Path({str(tmp_path)!r}))
except CapabilityError as error:
    assert "this process's cpuset forbids CPUs 8000" in str(error), error
else:
    raise SystemExit("not refused")
"""
    done = _run(program)
    assert done.returncode == 0, done.stderr
