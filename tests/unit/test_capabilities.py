"""The doctor's data: every trial ends in a sentence, whatever happens."""

from __future__ import annotations

import mmap

import pytest

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.system import capabilities, numa, probes
from sentinel.system.capabilities import probe_all


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


@pytest.mark.parametrize(
    ("version", "accepted"), [("2.10.1", False), ("2.11.0", True), ("2.15.0+cpu", True), ("2.16.0", False)]
)
def test_torch_must_be_of_a_known_release(monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    if accepted:
        assert probes.torch() == version
    else:
        with pytest.raises(probes.Missing, match=r"2\.11 or later and earlier than 2\.16"):
            probes.torch()


def test_the_known_torch_releases_are_those_of_the_package() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    since, before = (".".join(map(str, bound)) for bound in (probes.TORCH_SINCE, probes.TORCH_BEFORE))
    assert f'"torch>={since},<{before}"' in text


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
