"""What the file system under a directory is, and what it allows: each found out by trying."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import UsageError
from sentinel.system.sysfs import text

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "rootfs")
"""File systems whose files take the memory that a storage tier is to spare."""


@dataclass(frozen=True)
class Disk:
    """`folder`: the directory asked about. `file_system`: its name in Linux. `mounted_at`: where it begins.
    `free_bytes`: what this user may still write. `unnamed`: files can be born without a name (O_TMPFILE). `direct`:
    files can be read and written past the page cache (O_DIRECT)."""

    folder: Path
    file_system: str
    mounted_at: Path
    free_bytes: int
    unnamed: bool
    direct: bool

    @property
    def in_memory(self) -> bool:
        """Whether what is written there takes memory."""
        return self.file_system in IN_MEMORY


def disk_of(folder: str | os.PathLike[str], root: Path = Path("/")) -> Disk:
    """The disk under a directory. Raises UsageError if it is none, or may not be written to."""
    path = Path(folder).resolve()
    if not path.is_dir():
        raise UsageError(f"{folder} is not a directory", "name one that exists")
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} may not be written to", "name a directory of your own")
    free = os.statvfs(path)
    mounted_at, file_system = _mount_of(path, text(root / "proc/self/mountinfo"))
    return Disk(
        folder=path,
        file_system=file_system,
        mounted_at=mounted_at,
        free_bytes=free.f_bavail * free.f_frsize,
        unnamed=_opens(path, os.O_TMPFILE),
        direct=_opens(path, os.O_TMPFILE | os.O_DIRECT),
    )


def _mount_of(path: Path, mountinfo: str) -> tuple[Path, str]:
    """Where the file system of `path` is mounted, and its kind; of several at one place the last one counts."""
    found = (Path("/"), "unknown")
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if not dash or len(fields) < 5 or not after.split():
            continue
        at = Path(fields[4].encode().decode("unicode_escape"))  # spaces are written \\040
        if path.is_relative_to(at) and len(at.parts) >= len(found[0].parts):
            found = (at, after.split()[0])
    return found


def _opens(folder: Path, flags: int) -> bool:
    try:
        os.close(os.open(folder, flags | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True
