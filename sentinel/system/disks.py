"""What the file system under a directory is, and what it allows: each found out by trying."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sentinel.core.errors import UsageError
from sentinel.system.sysfs import entries, text

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "rootfs")
"""File systems whose files take the memory that a storage tier is to spare."""
_DEVICES_IN_MEMORY = re.compile(r"z?ram\d+")
_FIEMAP = 0xC020660B
_MOST_LAYERS = 8  # of devices and file systems over one another


@dataclass(frozen=True)
class Disk:
    """`folder`: the directory asked about. `file_system`: its name in Linux. `free_bytes`: what this user may still
    write. `unnamed`: files can be born without a name (O_TMPFILE). `direct`: files can be read and written past the
    page cache (O_DIRECT). `memory`: why what is written there takes memory; "" if it does not."""

    folder: Path
    file_system: str
    free_bytes: int
    unnamed: bool
    direct: bool
    memory: str

    @property
    def in_memory(self) -> bool:
        """Whether what is written there takes memory."""
        return bool(self.memory)


class Mount(NamedTuple):
    """`device`: `8:1`. `source`: as it was mounted from, `/dev/sda1`. `options`: of the file system."""

    at: Path
    file_system: str
    device: str = ""
    source: str = ""
    options: str = ""


def _is_directory(path: str | os.PathLike[str]) -> bool:
    """Raises OSError where that can't be told, on any Python: from 3.14 on Path.is_dir() says no then."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def disk_of(folder: str | os.PathLike[str], root: Path = Path("/")) -> Disk:
    """The disk under a directory. Raises UsageError if it is none, or may not be written to."""
    try:
        if not _is_directory(folder):
            raise UsageError(f"{folder} is not a directory", "name one that exists")
        path = Path(folder).resolve()
        free = os.statvfs(path)
    except (OSError, RuntimeError) as error:  # such as a loop of links, or a folder that may not be searched
        raise UsageError(f"{folder} cannot be used: {error}", "name a directory that this user may use") from error
    if free.f_flag & os.ST_RDONLY:
        raise UsageError(f"{folder} is on a file system that is mounted read-only", "name a directory on another one")
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} may not be written to", "name a directory of your own")
    mount = mount_of(path, root)
    return Disk(
        folder=path,
        file_system=mount.file_system,
        free_bytes=free.f_bavail * free.f_frsize,
        unnamed=_opens(path, os.O_TMPFILE),
        direct=_opens(path, os.O_TMPFILE | os.O_DIRECT),
        memory=memory_under(path, root),
    )


def memory_under(folder: str | os.PathLike[str], root: Path = Path("/"), layers: int = _MOST_LAYERS) -> str:
    """Why what is written to a directory takes memory, in words; "" if it does not, or there is no such directory."""
    path = Path(folder).resolve()
    if not path.is_dir() or layers == 0:
        return ""
    mount = mount_of(path, root)
    if mount.file_system in IN_MEMORY:
        return f"{mount.at} is a {mount.file_system}, which is in memory"
    if mount.file_system == "overlay":
        upper = re.search(r"(?:^|,)upperdir=((?:[^,\\]|\\.)*)", mount.options)
        under = memory_under(_unescaped(upper[1]), root, layers - 1) if upper else ""
        if under or not _has_extents(path):
            return f"{mount.at} is an overlay whose files are in memory" + (f": {under}" if under else "")
    return _memory_of_device(device_of(mount, root), root, layers)


def device_of(mount: Mount, root: Path = Path("/")) -> Path:
    """Of what is mounted, in sysfs, where there may be none. Some file systems (btrfs) have numbers of their own: then
    by its name."""
    numbered = root / "sys/dev/block" / mount.device
    return numbered if mount.device and numbered.exists() else root / "sys/class/block" / Path(mount.source).name


def _memory_of_device(device: Path, root: Path, layers: int) -> str:
    device = whole_device(device)
    if layers == 0 or not device.is_dir():
        return ""
    if _DEVICES_IN_MEMORY.fullmatch(device.name):
        return f"/dev/{device.name} is in memory"
    if behind := text(device / "loop/backing_file").removesuffix("\n"):
        return memory_under(Path(behind).parent, root, layers - 1)
    return next(filter(None, (_memory_of_device(each, root, layers - 1) for each in entries(device / "slaves"))), "")


def whole_device(device: Path) -> Path:
    """Where a device is in sysfs; of a partition, its disk."""
    device = device.resolve()
    return device.parent if (device / "partition").exists() else device


def mount_of(path: Path, root: Path = Path("/")) -> Mount:
    """What is mounted under `path`; of several at one place the last one counts."""
    found = Mount(Path("/"), "unknown")
    for mount in mounts(root):
        if path.is_relative_to(mount.at) and len(mount.at.parts) >= len(found.at.parts):
            found = mount
    return found


def mounts(root: Path = Path("/")) -> Iterator[Mount]:
    """All that is mounted, in the kernel's order."""
    try:
        mountinfo = os.fsdecode((root / "proc/self/mountinfo").read_bytes())
    except OSError:
        return
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        fields, of_file_system = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(of_file_system) < 3:
            continue
        at, source = Path(_unescaped(fields[4])), _unescaped(of_file_system[1])
        yield Mount(at, of_file_system[0], fields[2], source, of_file_system[2])


def _unescaped(name: str) -> str:
    """Blanks and the like are written \\040; all else stands for itself."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), name)


def _has_extents(folder: Path) -> bool:
    """Whether the file system tells where a file is on its disk: an overlay passes the question on, and what is in
    memory has no answer."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.ioctl(file, _FIEMAP, struct.pack("=QQLLLL", 0, (1 << 64) - 1, 0, 0, 0, 0))
    except OSError as refused:
        return refused.errno not in (errno.EOPNOTSUPP, errno.ENOTTY)
    return True


def _opens(folder: Path, flags: int) -> bool:
    try:
        os.close(os.open(folder, flags | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True
