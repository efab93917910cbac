"""How much memory a container leaves to this process, and how many addresses and mappings limits on them do."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sentinel.system.sysfs import field, text


class LimitedGroup(NamedTuple):
    """A limit of a memory cgroup, which may have two. `limit_bytes`: beyond that, the kernel ends a process of it, or
    makes each allocation wait (memory.high). `room_bytes`: what it has left, its idle file pages included. `limit`,
    `used`, `stat`: its files; `idle`: those pages' name in `stat`, `busy`: that of file pages in use."""

    room_bytes: int
    limit_bytes: int
    limit: Path
    used: Path
    stat: Path
    idle: str
    busy: str


def limited_groups(root: Path = Path("/")) -> list[LimitedGroup]:
    """The memory cgroups around this process that have a limit, the one that has least left first."""
    return sorted(group for folder, form in _groups(root) if (group := _limited(folder, form)) is not None)


def room_bytes(root: Path = Path("/"), *, hard: bool = False) -> int | None:
    """What the tightest memory cgroup of this process has left; None without a limit. `hard`: of limits beyond which
    the kernel ends a process."""
    rooms = (group.room_bytes for group in limited_groups(root) if not (hard and group.limit.name == _HIGH))
    return next(rooms, None)


def available_bytes(root: Path = Path("/")) -> int:
    """What the kernel could give this process now without swapping, and its container allows."""
    told = field(root / "proc/meminfo", "MemAvailable")
    there = int(told.split()[0]) * 1024 if told else host_bytes()
    room = room_bytes(root)
    return there if room is None else min(there, room)


def shared_bytes(root: Path = Path("/")) -> int:
    """Shared memory of all processes of this host, which has no file on a disk."""
    return _kib(root / "proc/meminfo", "Shmem") * 1024


def host_bytes() -> int:
    """Memory that this host has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def reachable_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may ever have: what the host has, or less where its container is limited."""
    return min([host_bytes(), *(group.limit_bytes for group in limited_groups(root))])


def most_mappings(root: Path = Path("/")) -> int:
    """How many mappings the kernel allows a process (vm.max_map_count)."""
    told = text(root / "proc/sys/vm/max_map_count").strip()
    return int(told) if told.isdigit() else _USUAL_MAPPINGS


def arena_bytes() -> int:
    """Address space for each arena, without a limit on it: it costs nothing, and all nodes' memory is to fit."""
    return min(max(_RESERVED_BYTES, RESERVED_TIMES_MEMORY * host_bytes()), _MOST_RESERVED_BYTES)


def address_space_left() -> int | None:
    """Bytes of addresses that this process may still map (`ulimit -v`); None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = text(Path("/proc/self/statm")).split()
    return max(limit - (int(pages[0]) * resource.getpagesize() if pages else 0), 0)


def private_memory_left(root: Path = Path("/")) -> int | None:
    """Bytes of private writable memory that this process may still map: by the limit on it (`ulimit -d`), and by what
    the kernel promises in all where it promises no more than there is (vm.overcommit_memory=2). None without either."""
    left: list[int] = []
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - _kib(root / "proc/self/status", "VmData") * 1024)
    if promises_no_more_than_there_is(root):
        meminfo = root / "proc/meminfo"
        left.append((_kib(meminfo, "CommitLimit") - _kib(meminfo, "Committed_AS")) * 1024)
    return max(min(left), 0) if left else None


def promises_no_more_than_there_is(root: Path = Path("/")) -> bool:
    """Whether the kernel refuses memory as it is asked for, not only as it is written (vm.overcommit_memory=2)."""
    return text(root / "proc/sys/vm/overcommit_memory").strip() == "2"


def _kib(path: Path, name: str) -> int:
    """The number of KiB in the line of that name; 0 without one."""
    told = field(path, name)
    return int(told.split()[0]) if told else 0


RESERVED_TIMES_MEMORY = 4
"""What is free in an arena lies in pieces, so a step takes more addresses than memory. Tables of both arenas take a
51st of one's addresses in private memory."""
_RESERVED_BYTES = 1 << 38  # of address space, for each arena, on a host of little memory
_MOST_RESERVED_BYTES = (1 << 44) - (1 << 21)  # pages of the exclusive arena are numbered by 32 bits
_USUAL_MAPPINGS = 65530  # the kernel's own choice
_HIGH = "memory.high"
_V1 = (("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),)
_V2 = tuple((limit, "memory.current", "inactive_file", "active_file") for limit in ("memory.max", _HIGH))


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """The cgroups of this process, each with those around it. A container may see its own as the root."""
    mounted = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "memory"):
            continue
        base, forms = (mounted, _V2) if controllers == "" else (mounted / "memory", _V1)
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            for form in forms:
                yield base.joinpath(*parts[:depth]), form


def _limited(folder: Path, form: tuple[str, str, str, str]) -> LimitedGroup | None:
    limit, used, idle, busy = form
    most, now = text(folder / limit).strip(), text(folder / used).strip()
    if not most.isdigit() or not now.isdigit() or int(most) >= 1 << 60:  # "max", or version 1's huge number
        return None
    stat = dict(line.split(" ", 1) for line in text(folder / "memory.stat").splitlines() if " " in line)
    room = max(int(most) - int(now) + int(stat.get(idle, "0")), 0)
    return LimitedGroup(room, int(most), folder / limit, folder / used, folder / "memory.stat", idle, busy)
