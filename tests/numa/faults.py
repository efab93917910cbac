"""What can go wrong with memory on two nodes, done for real: a full node, pinned pages, a node that is not allowed or
goes offline."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from tests.numa.vm_calls import PAGE, Pages, move_pages

_libc = ctypes.CDLL(None, use_errno=True)
_IO_URING_SETUP, _IO_URING_REGISTER = 425, 427
_REGISTER_BUFFERS = 0
_CHUNK_PAGES = 512
_CAPABILITY_VERSION, _CAP_SYS_NICE = 0x20080522, 23
_CGROUPS = Path("/sys/fs/cgroup")
_NODES = Path("/sys/devices/system/node")


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


@contextlib.contextmanager
def full(node: int) -> Iterator[int]:
    """No page can be migrated to `node` meanwhile: ballast is, until the kernel refuses. Yields its pages."""
    ballast: list[Pages] = []
    refused = 0
    while refused < 3:  # each chunk passes through the other node
        chunk = Pages(_CHUNK_PAGES)
        _lock(chunk)
        ballast.append(chunk)
        try:
            refused += any(status != node for status in move_pages(chunk.addresses(), node))
        except OSError:
            refused += 1
    try:
        yield sum(chunk.nodes()[node] for chunk in ballast)
    finally:
        for chunk in ballast:
            chunk.close()


@contextlib.contextmanager
def pinned(address: int, nbytes: int) -> Iterator[None]:
    """The pages of [address, address + nbytes) are pinned for long, as for direct I/O or RDMA."""
    parameters = (ctypes.c_uint32 * 30)()
    ring = _libc.syscall(_IO_URING_SETUP, 1, parameters)
    if ring < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    try:
        first = address // PAGE * PAGE
        buffer = _Iovec(first, -(-(address + nbytes - first) // PAGE) * PAGE)
        if _libc.syscall(_IO_URING_REGISTER, ring, _REGISTER_BUFFERS, ctypes.byref(buffer), 1) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_register")
        yield
    finally:
        os.close(ring)


@contextlib.contextmanager
def only_node(node: int) -> Iterator[None]:
    """This process may use the memory of `node` alone, by a cgroup's cpuset; the kernel brings its pages there."""
    group = _CGROUPS / "sentinel-only-node"
    (_CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir(exist_ok=True)
    (group / "cpuset.mems").write_text(str(node))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (_CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextlib.contextmanager
def offline(node: int) -> Iterator[None]:
    """All memory of `node` is taken offline, block by block; the kernel brings what is there elsewhere before."""
    states = [block / "state" for block in sorted((_NODES / f"node{node}").glob("memory[0-9]*"))]
    for state in states:
        state.write_text("offline")
    assert node not in nodes_with_memory()
    try:
        yield
    finally:
        for state in states:
            state.write_text("online_movable")


def nodes_with_memory() -> set[int]:
    """Those that have any online."""
    spans = [part.split("-") for part in (_NODES / "has_memory").read_text().strip().split(",")]
    return {node for span in spans for node in range(int(span[0]), int(span[-1]) + 1)}


def may_go_offline(node: int) -> bool:
    """Whether all memory of `node` is for what can move; on other memory the kernel itself may sit."""
    zones = [(block / "valid_zones").read_text() for block in (_NODES / f"node{node}").glob("memory[0-9]*")]
    return bool(zones) and all("Movable" in zone for zone in zones)


@contextlib.contextmanager
def without_the_right_to_move_shared_pages() -> Iterator[None]:
    """This thread, and those that it starts meanwhile, lack CAP_SYS_NICE."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    if _libc.capget(header, rights):
        raise OSError(ctypes.get_errno(), "capget")
    before = rights[0]
    rights[0] &= ~(1 << _CAP_SYS_NICE)
    if _libc.capset(header, rights):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        rights[0] = before
        if _libc.capset(header, rights):
            raise OSError(ctypes.get_errno(), "capset")


def _lock(pages: Pages) -> None:
    """Reclaim leaves them alone; migration does not."""
    if _libc.mlock(ctypes.c_void_p(pages.address), ctypes.c_size_t(pages.n_pages * mmap.PAGESIZE)):
        raise OSError(ctypes.get_errno(), "mlock")
