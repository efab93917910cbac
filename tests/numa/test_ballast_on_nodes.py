"""Ballast on a real node: it leaves what it is told to, and goes on doing so beside whoever takes and frees memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.executed.cgroup import Cgroup, new_cgroup
from sentinel.executed.memory_pressure import Ballast
from sentinel.executed.node_memory import exact_free_counts, node_bytes, node_room_bytes

pytestmark = pytest.mark.needs("two nodes", "root")
LEFT, TAKEN, CLOSE = 48 << 20, 13 << 20, 2 << 20
"""`CLOSE`: what the kernel itself takes and frees meanwhile, page tables and caches, was seen to reach 0.9 MiB."""
LOOKS = 5
SMALL = 4 << 30


@pytest.fixture(autouse=True, scope="module")
def small_node() -> None:
    """All but a little of node 0 is pinned here: not on a machine that others use."""
    if node_bytes(0) > SMALL:
        pytest.skip("node 0 is larger than 4 GiB: runs in tools/numa_vm")


@contextmanager
def taken() -> Iterator[None]:
    """So many bytes of node 0, where this process runs, are in use."""
    with mmap.mmap(-1, TAKEN, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for at in range(0, TAKEN, mmap.PAGESIZE):
            area[at] = 1
        yield


@contextmanager
def taken_by(group: Cgroup) -> Iterator[None]:
    """The same, by a process of `group`."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            group.join()
            with taken():
                os.write(ready[1], b"1")
                os.close(done[1])
                os.read(done[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1) == b"1"  # nothing: the child ended before it had the memory
        yield
    finally:
        os.write(done[1], b"1")
        os.waitpid(pid, 0)
        for descriptor in (ready[0], *done):
            os.close(descriptor)


def room_after(ballast: Ballast) -> int:
    for _ in range(LOOKS):
        ballast.keep()
    return node_room_bytes(0)


def locked_bytes() -> int:
    """What this process has pinned."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck:"))
    return int(line.split()[1]) << 10


@pytest.fixture(autouse=True, scope="module")
def exact(small_node: None) -> Iterator[None]:
    with exact_free_counts():
        yield


@pytest.fixture
def group() -> Iterator[Cgroup]:
    with new_cgroup(0) as made:
        assert made is not None, "root may make a memory cgroup"
        yield made


def test_what_others_take_and_free_leaves_the_room_as_it_was_and_what_the_job_takes_is_its_own(group: Cgroup) -> None:
    with Ballast(0, LEFT, group) as ballast:
        assert abs(ballast.began_bytes - LEFT) < CLOSE
        with taken():
            # it was close to LEFT, and what is taken is close to TAKEN
            assert node_room_bytes(0) < LEFT - TAKEN + 2 * CLOSE
            assert abs(room_after(ballast) - LEFT) < CLOSE
        assert node_room_bytes(0) > LEFT + TAKEN - 2 * CLOSE  # as close again
        assert abs(room_after(ballast) - LEFT) < CLOSE
        with taken_by(group):
            assert abs(room_after(ballast) - (LEFT - TAKEN)) < 2 * CLOSE  # a process takes a little besides
            assert abs(ballast.had_bytes[-1] - LEFT) < CLOSE
    assert node_room_bytes(0) > 2 * LEFT


def test_without_a_group_the_ballast_stays_as_it_is() -> None:
    with Ballast(0, LEFT) as ballast, taken():
        pinned = locked_bytes()  # not the room: that also changes as processes of earlier tests end
        room_after(ballast)
        assert locked_bytes() == pinned > 0
        assert not ballast.had_bytes
