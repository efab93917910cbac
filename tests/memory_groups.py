"""A memory cgroup of a test's own, below that of the test, in either version of cgroups."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import until


@dataclass(frozen=True)
class MemoryGroup:
    """`limit`, `peak`: the files that take and tell bytes. A process joins by its number in `folder`/cgroup.procs."""

    folder: Path
    limit: Path
    peak: Path


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """For as long as this lasts. Skips the test where this process may make none."""
    group = _made()
    try:
        yield group
    finally:
        until(lambda: not (group.folder / "cgroup.procs").read_text())  # of a killed process's children, too
        group.folder.rmdir()


def _made() -> MemoryGroup:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        versions = {
            "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            "": ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        }
        if controllers not in versions:
            continue
        root, limit, peak = versions[controllers]
        for parent in (Path(root + path), Path(root)):
            try:
                folder = Path(tempfile.mkdtemp(prefix="sentinel-test-", dir=parent))
            except OSError:
                continue
            if (folder / limit).exists():
                return MemoryGroup(folder, folder / limit, folder / peak)
            folder.rmdir()
    pytest.skip("needs a memory cgroup that may be divided: run as root, with a writable /sys/fs/cgroup")
