"""How much memory a container leaves to this process, and how many addresses and mappings limits on them do."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from sentinel.system.sysfs import text


def room_bytes(root: Path = Path("/")) -> int | None:
    """What the tightest memory cgroup of this process has left, its idle file pages included; None without a limit.

    Beyond that, the kernel ends a process of the group.
    """
    found = [room for folder, form in _groups(root) if (room := _room(folder, form)) is not None]
    return min(found, default=None)


def available_bytes(root: Path = Path("/")) -> int:
    """What the kernel could give this process now without swapping, and its container allows."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            there = int(line.split()[1]) * 1024
    room = room_bytes(root)
    return there if room is None else min(there, room)


def most_mappings(root: Path = Path("/")) -> int:
    """How many mappings the kernel allows a process (vm.max_map_count)."""
    told = text(root / "proc/sys/vm/max_map_count").strip()
    return int(told) if told.isdigit() else _USUAL_MAPPINGS


def address_space_left() -> int | None:
    """Bytes of addresses that this process may still map (`ulimit -v`); None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = text(Path("/proc/self/statm")).split()
    return max(limit - (int(pages[0]) * resource.getpagesize() if pages else 0), 0)


_USUAL_MAPPINGS = 65530  # the kernel's own choice
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The cgroups of this process, each with those around it. A container may see its own as the root."""
    mounted = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "memory"):
            continue
        base, form = (mounted, _V2) if controllers == "" else (mounted / "memory", _V1)
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            yield base.joinpath(*parts[:depth]), form


def _room(folder: Path, form: tuple[str, str, str]) -> int | None:
    limit, used, idle = form
    most, now = text(folder / limit).strip(), text(folder / used).strip()
    if not most.isdigit() or not now.isdigit() or int(most) >= 1 << 60:  # "max", or version 1's huge number
        return None
    stat = dict(line.split(" ", 1) for line in text(folder / "memory.stat").splitlines() if " " in line)
    return max(int(most) - int(now) + int(stat.get(idle, "0")), 0)
