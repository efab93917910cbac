"""A forked worker outlives its parent's watching: what it inherits must not keep the kernel's work attached."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from sentinel.core.errors import CapabilityError, SentinelError, UsageError
from sentinel.migration.witness import MigrationWitness
from sentinel.profiler.pages.ebpf import EbpfReader


def bpf_descriptors() -> list[str]:
    """What this process holds of BPF: maps, programs, and the links that keep programs attached."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            kind = os.readlink(f"/proc/self/fd/{name}")
            if kind.startswith("anon_inode:") and "bpf" in kind:  # not a file of ours, such as a log of tests/ebpf
                found.append(kind)
    return found


@pytest.fixture
def witness() -> Iterator[MigrationWitness]:
    """Attached, without the proof that `start` asks for and that one node cannot give."""
    made = MigrationWitness(log_entries=1 << 10)
    try:
        made._open()
    except (SentinelError, OSError) as error:
        made.stop()
        pytest.skip(f"needs the right to load BPF programs: run as root ({error})")
    yield made
    made.stop()


def in_child(witness: MigrationWitness) -> tuple[list[str], bool]:
    """(what a forked child holds of BPF, whether the witness says there that it does not watch)."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        refused = False
        try:
            witness.waiting()
        except UsageError:
            refused = True
        witness.stop()  # as the end of an interpreter may
        os.write(sink, json.dumps([bpf_descriptors(), refused]).encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as told:
        held, refused = json.load(told)
    assert os.waitpid(child, 0) == (child, 0)
    return held, refused


def test_a_forked_child_holds_nothing_of_the_witness(witness: MigrationWitness) -> None:
    before = sorted(bpf_descriptors())
    assert any("link" in kind or "tracepoint" in kind for kind in before)  # the negative control: there is something
    assert in_child(witness) == ([], True)
    assert sorted(bpf_descriptors()) == before
    assert witness.waiting() == 0  # the parent's goes on


def test_stopping_twice_closes_no_descriptor_of_anybody_else(witness: MigrationWitness) -> None:
    witness.stop()
    source, sink = os.pipe()
    witness.stop()
    os.write(sink, b"!")
    assert os.read(source, 1) == b"!"
    os.close(source)
    os.close(sink)
    assert bpf_descriptors() == []


def test_a_child_forked_while_pages_are_watched_holds_nothing_of_the_watcher() -> None:
    reader = EbpfReader()
    try:
        reader.open(1, [])
    except CapabilityError as error:
        pytest.skip(f"needs the right to load BPF programs: run as root ({error})")
    try:
        assert any("link" in kind or "tracepoint" in kind for kind in bpf_descriptors())
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            reader.close()
            os.write(sink, json.dumps(bpf_descriptors()).encode())
            os._exit(0)
        os.close(sink)
        with os.fdopen(source) as told:
            assert json.load(told) == []
        assert os.waitpid(child, 0) == (child, 0)
    finally:
        assert reader.close() == 0
    assert bpf_descriptors() == []
