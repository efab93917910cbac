"""Which disk of this host to write to where the user names none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes
from sentinel.system.disks import Disk, Mount, device_of, disk_of, mount_of, mounts, whole_device
from sentinel.system.sysfs import text

NAMED = "SENTINEL_SCRATCH"
"""In the environment: the directory that the user names, also on the root file system."""
_REMOTE = re.compile(r"(nbd|rbd|drbd|loop)\d+")  # not of this host, or a file of another disk
_FOR_BOOTING = ("vfat", "msdos", "exfat")


class Scratch(NamedTuple):
    """`why`: what speaks for `disk`, in few words."""

    disk: Disk
    why: str


def fastest_disk(least_bytes: int, root: Path = Path("/")) -> Scratch:
    """A local disk with `least_bytes` free, other than the root file system's: NVMe before other flash, that before
    what rotates or does not tell, O_DIRECT before none, then the one with most room.

    Looked at are the places where something is mounted, and the current directory, TMPDIR and the user's home. What
    SENTINEL_SCRATCH names is taken as it is. Raises UsageError where none qualifies.
    """
    if named := os.environ.get(NAMED):
        return Scratch(disk_of(named, root), f"{NAMED} names it")
    found = []
    for folder in _places(root):
        try:
            disk = disk_of(folder, root)
        except (UsageError, OSError):
            continue  # no directory, gone, or not this user's
        mount = mount_of(disk.folder, root)
        kind = _kind(mount, root)
        if kind is not None and not disk.in_memory and disk.free_bytes >= least_bytes:
            found.append(((_KINDS.index(kind), not disk.direct, -disk.free_bytes), Scratch(disk, kind)))
    if not found:
        raise UsageError(
            f"no local disk but the root file system's has {format_bytes(least_bytes)} free where this user may write",
            f'name a directory: slow="file:/var/tmp", or {NAMED}=/var/tmp',
        )
    return min(found, key=lambda each: each[0])[1]


_KINDS = ("NVMe", "flash", "a disk that rotates, or does not tell")


def _places(root: Path) -> Iterator[Path]:
    """Without those that cannot be taken: to look into a directory of a server that does not answer takes for ever."""
    for mount in mounts(root):
        booting = mount.file_system in _FOR_BOOTING or mount.at.is_relative_to("/boot")
        if not booting and _kind(mount, root) is not None:
            yield mount.at
    yield from map(Path, (".", os.environ.get("TMPDIR", "."), os.path.expanduser("~")))


def _kind(mount: Mount, root: Path) -> str | None:
    """One of _KINDS; None for the root file system, and for what is no disk of this host."""
    device, root_device = device_of(mount, root), device_of(mount_of(Path("/"), root), root)
    if mount.at == Path("/") or not mount.source.startswith("/dev/") or not device.is_dir():
        return None
    if device.resolve() == root_device.resolve():
        return None
    whole = whole_device(device)
    if _REMOTE.fullmatch(whole.name):
        return None
    if whole.name.startswith(("nvme", "pmem")):
        return _KINDS[0]
    return _KINDS[1 if text(whole / "queue/rotational").strip() == "0" else 2]
