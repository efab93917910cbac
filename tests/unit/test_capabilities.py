"""The doctor's data: every trial ends in a sentence, whatever happens."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.system import capabilities, limits, numa, probes, settings
from sentinel.system.capabilities import probe_all

SOURCE = Path(__file__).parents[2]


def test_every_capability_says_what_was_seen_and_what_to_do() -> None:
    found = probe_all()
    names = [capability.name for capability in found]
    assert len(set(names)) == len(names)
    assert {"move_pages", "mbind", "second node", "eBPF", "memfd", "torch", "C++ compiler"} <= set(names)
    for capability in found:
        assert capability.why, capability
        assert capability.remedy, capability
        assert capability.needed_for, capability


@pytest.mark.parametrize(
    "error",
    [
        NativeError("bpf", 1),
        PermissionError(13, "Permission denied"),
        probes.Missing("not here"),
        CapabilityError("a", "b", "c"),
        ZeroDivisionError("odd"),
    ],
)
def test_a_trial_that_fails_in_any_way_is_a_missing_capability(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> str:
        raise error

    probe = capabilities._Probe("thing", fail, "do that", "work")
    monkeypatch.setattr(capabilities, "_PROBES", (probe,))
    (capability,) = probe_all()
    assert not capability.available
    assert capability.why
    assert (capability.name, capability.remedy, capability.needed_for) == ("thing", "do that", "work")


def test_residency_tells_touched_pages_from_untouched_ones() -> None:
    probes.move_pages()  # fails here where the call is not allowed
    memory = mmap.mmap(-1, 7 * 4096)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in (0, 2, 5):
        memory[page * 4096] = 1
    import ctypes

    anchor = ctypes.c_char.from_buffer(memory)
    found = numa.residency(ctypes.addressof(anchor), 7 * 4096)
    assert [page for page, node in enumerate(found) if node >= 0] == [0, 2, 5]
    node = int(found[0])
    assert numa.bytes_on(node, [(ctypes.addressof(anchor), 7 * 4096)]) == 3 * 4096
    with pytest.raises(NativeError, match="move_pages"):
        numa.move(ctypes.addressof(anchor), 4096, 1000)
    numa.bind(ctypes.addressof(anchor), 7 * 4096, node)
    assert numa.policy(ctypes.addressof(anchor)) == (numa.MPOL_PREFERRED, (node,))
    numa.unbind(ctypes.addressof(anchor), 7 * 4096)
    assert numa.policy(ctypes.addressof(anchor)) == (numa.MPOL_DEFAULT, ())
    del anchor


def test_how_much_is_on_a_node_is_asked_of_few_pages_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where all pages are asked for; else close, never more than there is but by chance, and in bounded time."""
    probes.move_pages()
    pages, touched = 8192, 6144
    memory = mmap.mmap(-1, pages * 4096)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(touched):
        memory[page * 4096] = 1
    import ctypes

    anchor = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(anchor)
    node = int(numa.residency(address, 4096)[0])
    asked, nodes_of = [], numa.nodes_of

    def noted(some: Any) -> Any:
        asked.append(len(some))
        return nodes_of(some)

    monkeypatch.setattr(numa, "nodes_of", noted)
    halves = [(address, pages * 2048), (address + pages * 2048, pages * 2048 - 4095), (0, 0)]
    own = sum(nbytes for _, nbytes in halves)
    assert numa.about_bytes_on(node, halves) == own * touched // pages
    about = numa.about_bytes_on(node, halves, 1000)
    assert asked == [pages, 911]  # one in each stretch of nine
    assert 0.7 * own < about <= 0.75 * own
    assert numa.about_bytes_on(node + 7, halves, 1000) == numa.about_bytes_on(node, []) == 0
    assert numa.about_bytes_on(node, [(address, 100)]) == 100
    del anchor


def test_every_right_setting_and_feature_is_asked_for_and_grouped() -> None:
    found = {capability.name: capability for capability in probe_all()}
    assert {c.group for c in found.values()} == set(capabilities.GROUPS)
    for name in (
        *("CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE", "perf_event_paranoid", "unprivileged_userfaultfd"),
        *("unprivileged_bpf_disabled", "locked memory", "madvise", "no NUMA balancing", "no demotion by the kernel"),
        *("cpuset", "PAGEMAP_SCAN", "soft-dirty bits", "move_pages"),
    ):
        assert "\n" not in found[name].remedy


def test_rights_are_those_of_the_process() -> None:
    held = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    assert settings.holds("CAP_SYS_NICE") == bool(held >> 23 & 1)
    assert settings.holds("CAP_IPC_LOCK") == bool(held >> 14 & 1)
    program = (
        "import os; os.setresuid(65534, 65534, 65534)\n"
        "from sentinel.system.settings import holds\n"
        "print([holds(n) for n in ('CAP_BPF', 'CAP_PERFMON', 'CAP_SYS_NICE', 'CAP_IPC_LOCK')])"
    )
    if os.geteuid() == 0:
        program = program.replace("import os;", "import os, sentinel.system.settings;")
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=SOURCE, timeout=600
        )
        assert done.stdout.strip() == "[False, False, False, False]"


@pytest.mark.parametrize(
    ("value", "rights", "shown"),
    [("-1", False, "-1"), ("1", False, "=1"), ("2", False, "none inside"), ("3", False, None), ("3", True, "CAP_PERF")],
)
def test_perf_is_judged_by_setting_and_right(
    monkeypatch: pytest.MonkeyPatch, value: str, rights: bool, shown: str | None
) -> None:
    monkeypatch.setattr(settings, "_sysctl", lambda name: value)
    monkeypatch.setattr(settings, "holds", lambda name: rights)
    if shown is None:
        with pytest.raises(probes.Missing, match="perf_event_paranoid=3, without CAP_PERFMON"):
            settings.perf_event_paranoid()
    else:
        assert shown in settings.perf_event_paranoid()


def test_limits_are_read_from_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (257, hard))
    try:
        with pytest.raises(probes.Missing, match="ulimit -n is 257"):
            settings.open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_cpuset_that_leaves_out_a_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/status": "Mems_allowed_list:\t0,2\n", "/sys/devices/system/node/has_memory": "0-3\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, *_: texts[str(path)])
    with pytest.raises(probes.Missing, match=r"nodes \[1, 3\]"):
        settings.cpuset_nodes()


@pytest.mark.parametrize(
    ("memory_bytes", "told"), [(8 << 30, "256.00 GiB"), (1 << 40, "4.00 TiB"), (1 << 50, "16.00 TiB")]
)
def test_as_many_addresses_are_tried_as_a_session_asks_for(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int, told: str
) -> None:
    """256 GiB or four times the memory, up to what the arena can number."""
    monkeypatch.setattr(limits, "host_bytes", lambda: memory_bytes)
    assert settings.address_space() == f"{told} of addresses were reserved"
