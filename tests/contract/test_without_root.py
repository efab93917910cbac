"""A training step profiled by a user without any right, and in sandboxes that refuse more and more.

What is allowed is used, what is not is told, training stays bit-identical; `confined.py` gives the rights up for good.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.system.kernel import _NUMBERS

pytestmark = [
    pytest.mark.needs("torch", "compiler"),
    pytest.mark.skipif(platform.machine() not in _NUMBERS, reason="needs x86-64 or aarch64: system calls by number"),
]

_PROGRAM = Path(__file__).with_name("confined.py")
_SOURCE = _PROGRAM.parents[2]
CONTAINER = ("bpf", "perf_event_open", "userfaultfd", "mbind", "get_mempolicy", "set_mempolicy", "move_pages")
"""What the usual container's filter refuses to a process without capabilities."""


_KINDS = (
    ("auto",),
    ("auto", *CONTAINER),
    ("auto", *CONTAINER, "memfd_create"),
    ("auto", "perf_event_open"),
    ("pagemap",),
    ("auto", "keep-rights"),
)
"""What the tests ask for that needs no namespace: all from one process, which imports torch once."""


def confined(*arguments: str, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `confined.py` was told."""
    if within:
        return _told(arguments, within=within)[0]
    return _told(tuple(" -- ".join(map(" ".join, _KINDS)).split()))[_KINDS.index(arguments)]


@functools.cache
def _told(arguments: tuple[str, ...], within: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*within, sys.executable, str(_PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": str(_SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _paranoid() -> int:
    path = Path("/proc/sys/kernel/perf_event_paranoid")
    return int(path.read_text()) if path.exists() else 4


def _flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_the_rights_are_really_gone() -> None:
    told = confined("auto")
    assert told["uid"] != 0
    assert int(told["CapEff"], 16) == int(told["CapBnd"], 16) == int(told["CapAmb"], 16) == 0
    assert told["NoNewPrivs"] == "1"
    rights = {found["name"]: found for found in told["capabilities"]}
    for name in ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE", "eBPF"):
        assert not rights[name]["available"]
        assert rights[name]["remedy"]
    assert confined("auto", *CONTAINER)["Seccomp"] == "2"


def test_a_plain_user_profiles_the_step_by_page_faults() -> None:
    told = confined("auto")
    assert told["identical"]
    assert told["unknown_rows"] <= min(told["told_of_unknown"], told["known_rows"] // 20)
    assert told["touched_pages"] > 0
    by_setting = "perf" if _paranoid() <= 2 else "pagemap"
    assert told["tracker"] == told["doctor"]["auto"]["tracker"] == by_setting
    assert "Tracker not taken: ebpf" in _flat(told["text"])
    assert "not whether it was read or written" in _flat(told["text"])
    if by_setting == "perf" and _paranoid() == 2:
        assert "accesses by system calls" in told["blind_to"]
        assert "accesses by system calls" in _flat(told["text"])


def test_the_readers_that_a_plain_user_has_agree_on_the_step() -> None:
    if _paranoid() > 2:
        pytest.skip(f"needs perf_event_paranoid of at most 2: it is {_paranoid()}")
    by_pagemap, by_perf = confined("pagemap"), confined("auto")
    assert by_pagemap["identical"]
    assert by_perf["identical"]
    assert (by_pagemap["tracker"], by_perf["tracker"]) == ("pagemap", "perf")
    if by_pagemap["granularity_bytes"] == by_perf["granularity_bytes"] == 4096:
        assert by_pagemap["touched_pages"] == by_perf["touched_pages"]


def test_in_a_container_the_page_tables_tell_and_say_how_coarsely() -> None:
    told = confined("auto", *CONTAINER)
    assert told["identical"]
    assert told["tracker"] == told["auto"] == "pagemap"
    text = _flat(told["text"])
    assert told["granularity_bytes"] > 4096  # without userfaultfd a read maps its neighbours
    assert "No userfaultfd here" in text
    assert "Memory policies are refused here" in text
    for name in ("ebpf", "perf"):
        assert f"Tracker not taken: {name}" in text
    plain = confined("pagemap")
    if plain["granularity_bytes"] == 4096:
        assert told["touched_pages"] >= plain["touched_pages"]


def test_where_nothing_is_allowed_operators_tell() -> None:
    told = confined("auto", *CONTAINER, "memfd_create")
    assert told["identical"]
    assert told["tracker"] == told["auto"] == "ops"
    assert told["known_rows"] == 0
    text = _flat(told["text"])
    assert "Tracker ops is blind to memory that operators use without naming a tensor" in text
    trials = {found["tracker"]: found for found in told["doctor"]["trackers"]}
    for name in ("ebpf", "uffd", "perf", "pagemap"):
        assert not trials[name]["available"]
        assert "memfd_create" in trials[name]["remedy"]
        assert name == "uffd" or f"Tracker not taken: {name}" in text
    assert trials["ops"]["available"]


def test_with_all_rights_the_same_program_sees_more() -> None:
    """The control: nothing here is refused because of the program itself."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run as root")
    told = confined("auto", "keep-rights")
    assert told["identical"]
    if {found["tracker"]: found["available"] for found in told["doctor"]["trackers"]}["ebpf"]:
        assert told["tracker"] == "ebpf"
        assert told["sees"] == ["reads", "writes"]


def _sandbox() -> tuple[str, ...]:
    """A user and mount namespace of its own, with what looks like root in it."""
    return ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc")


def _require(sandbox: tuple[str, ...]) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare: apt-get install util-linux")
    tried = subprocess.run([*sandbox, "true"], capture_output=True, text=True, check=False, timeout=600)
    if tried.returncode:
        pytest.skip(f"needs user namespaces: {tried.stderr.strip()}")


def test_root_of_a_user_namespace_has_rights_that_do_not_count() -> None:
    _require(_sandbox())
    told = confined("auto", "keep-rights", within=_sandbox())
    assert told["identical"]
    assert told["uid"] == 0
    assert int(told["CapEff"], 16) != 0
    assert told["tracker"] in ("perf", "pagemap")
    rights = {found["name"]: found for found in told["capabilities"]}
    for name in ("CAP_BPF", "CAP_PERFMON"):
        assert not rights[name]["available"]
        assert "namespace" in rights[name]["why"]


@pytest.mark.parametrize("call", ["mbind", "move_pages"])
def test_a_slow_node_needs_system_calls_and_says_so_before_anything_is_changed(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's default profile allows the one with CAP_SYS_NICE, and never the other."""
    from sentinel.core.errors import CapabilityError, NativeError
    from sentinel.session.asked_machine import machine_of
    from sentinel.session.request import Request
    from sentinel.system import probes
    from tests.builders import MIB, make_machine

    def refused() -> str:
        raise NativeError(call, 1)

    for name in ("mbind", "move_pages"):
        monkeypatch.setattr(probes, name, refused if name == call else str)
    described = make_machine(8 * MIB)
    on_nodes = dataclasses.replace(
        described,
        tiers=tuple(dataclasses.replace(tier, kind="node", node=number) for number, tier in enumerate(described.tiers)),
    )
    monkeypatch.setattr("sentinel.tiers.machine_for", lambda slow: on_nodes)
    with pytest.raises(CapabilityError, match=f"{call}: .*; allow mbind, get_mempolicy and move_pages"):
        machine_of(Request(slow="numa:1"))
    emulated = dataclasses.replace(
        on_nodes, tiers=(on_nodes.tiers[0], dataclasses.replace(described.tiers[1], kind="emulated"))
    )
    monkeypatch.setattr("sentinel.tiers.machine_for", lambda slow: emulated)
    assert (machine_of(Request(slow="emulated:cxl-asic-x8")).fast.node is None) == (call == "mbind")


_RUN = """
import sys
from dataclasses import replace
from sentinel import cli, tiers
from tests.builders import MIB, make_machine
from tests.contract.confined import refuse

made, real = make_machine(8 * MIB), tiers.machine_for
nodes = replace(made, tiers=tuple(replace(tier, kind="node", node=number) for number, tier in enumerate(made.tiers)))
tiers.machine_for = lambda slow, *given: nodes if slow in ("auto", "numa:1") else real(slow, *given)
refuse(["move_pages"])
sys.exit(cli.main(["run", *sys.argv[1:]]))
"""
_SCRIPT = """
import torch
print("began")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
print("trained")
"""


def test_a_script_for_a_named_node_does_not_run_where_pages_may_not_move(tmp_path: Path) -> None:
    """By an option or a setting. Where no node is named it trains, and one sentence tells."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    command = [sys.executable, "-c", _RUN]
    for options, settings, runs in (
        (["--slow", "numa:1"], {}, False),
        ([], {"SENTINEL_SLOW": "numa:1"}, False),
        ([], {}, True),
    ):
        done = subprocess.run(
            [*command, "--fast", "50%", *options, "train.py"],
            env={**os.environ, "PYTHONPATH": str(_SOURCE), "OMP_NUM_THREADS": "1", **settings},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert (done.returncode, done.stdout) == ((0, "began\ntrained\n") if runs else (1, "")), done.stderr
        assert done.stderr.count("; allow mbind, get_mempolicy and move_pages") == 1, done.stderr


def test_where_faults_may_not_be_counted_the_page_tables_tell_to_the_page() -> None:
    """As with perf_event_paranoid=3, which a test may not set for the whole host."""
    told = confined("auto", "perf_event_open")
    assert told["identical"]
    assert told["tracker"] == "pagemap"
    assert "Tracker not taken: perf" in _flat(told["text"])
    if {found["name"]: found["available"] for found in told["capabilities"]}["userfaultfd, user mode"]:
        assert told["granularity_bytes"] == 4096


def test_without_proc_operators_tell() -> None:
    """A sandbox that hides /proc: no page tables to read, and no list of threads."""
    hidden = (
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /proc && exec "$@"',
        "sh",
    )
    _require(hidden)
    told = confined("auto", "keep-rights", within=hidden)
    assert told["identical"]
    assert told["tracker"] == "ops"
    for name in ("ebpf", "perf", "pagemap"):
        assert f"Tracker not taken: {name}" in _flat(told["text"])
    rights = {found["name"]: found for found in told["capabilities"]}
    assert "is /proc mounted?" in rights["CAP_BPF"]["why"]
