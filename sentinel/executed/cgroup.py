"""A memory cgroup for one job: what the job itself holds on a node, page tables and kernel objects included."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_KINDS = ("anon", "file", "kernel_stack", "pagetables", "slab_reclaimable", "slab_unreclaimable")
"""Rows of memory.numa_stat that do not overlap and add up to what lies on a node."""


class Cgroup:
    """The cgroup at `folder`, as far as `node` goes."""

    def __init__(self, folder: Path, node: int) -> None:
        self._folder, self._node = folder, node

    def join(self) -> None:
        """This process belongs to it from now on: what it takes, not what it has. Raises OSError."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def held_bytes(self) -> int:
        """Bytes of the node that its processes took and still hold."""
        # asked for alone, the file may be 64 pages a CPU late; before Linux 6.16 this one brings all up to date
        (self._folder / "cpu.stat").read_bytes()
        return held_bytes((self._folder / "memory.numa_stat").read_text(), self._node)


def held_bytes(numa_stat: str, node: int) -> int:
    """Of a cgroup's memory.numa_stat (Linux, Documentation/admin-guide/cgroup-v2.rst), in bytes."""
    total = 0
    for line in numa_stat.splitlines():
        kind, *cells = line.split()
        if kind in _KINDS:
            total += sum(int(cell.partition("=")[2]) for cell in cells if cell.startswith(f"N{node}="))
    return total


@contextlib.contextmanager
def new_cgroup(node: int, root: Path = ROOT) -> Iterator[Cgroup | None]:
    """A group of its own while this lasts; None where this process may make none, or there are no memory cgroups."""
    try:
        if "memory" not in (root / "cgroup.subtree_control").read_text().split():
            (root / "cgroup.subtree_control").write_text("+memory")
        folder = Path(tempfile.mkdtemp(prefix="sentinel-compare-", dir=root))  # one that could not go may be there
    except OSError:
        yield None
        return
    try:
        yield Cgroup(folder, node) if (folder / "memory.numa_stat").exists() else None
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(50):  # a process that has just ended is still counted for a moment
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.02)
