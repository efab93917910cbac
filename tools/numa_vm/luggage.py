"""What a run brings into the guest, and what comes back out of it: two tar files on raw disks."""

from __future__ import annotations

import io
import os
import shlex
import stat
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.numa_vm.packages import Missing, program

_NOT_BROUGHT = {".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
_NOT_RETURNED = ("__pycache__", ".pytest_cache", ".mypy_cache", ".hypothesis")
_LARGEST_RETURN_BYTES = 4 << 30  # of a sparse file


@dataclass(frozen=True)
class Luggage:
    """Folders that exist in the guest at their own paths: changes of their files come back, deletions do not."""

    folders: tuple[Path, ...]
    environment: Path
    """The virtual environment: in the root image already, and never changed from inside."""
    one_way: tuple[Path, ...] = ()
    """Folders that are brought, and never changed from inside."""

    def pack(self, archive: Path, notes: Mapping[str, str]) -> None:
        """Writes the disk that the guest unpacks: the folders, and `notes` as files of /.run."""
        with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, text in {**notes, "returned": self._names()}.items():
                _add(tar, f".run/{name}", text.encode(), 0o644)
            for folder in (*self.folders, *self.one_way):
                self._pack_folder(tar, folder)

    def empty_return(self, archive: Path) -> None:
        """Makes the disk that the guest writes; it takes the room of what is written."""
        with archive.open("wb") as file:
            file.truncate(_LARGEST_RETURN_BYTES)

    def unpack_return(self, archive: Path) -> None:
        """Puts back what the guest changed, as the caller's own files.

        Raises:
            Missing: something could not be written here.
        """
        excluded = [f"--exclude={name}" for name in _NOT_RETURNED]
        excluded.append(f"--exclude=.{self.environment}")
        done = subprocess.run(
            [program("tar", "tar"), "-xf", archive, "-C", "/", "--no-same-owner", "--no-overwrite-dir", *excluded],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Missing(f"what the command left behind could not be put back: {done.stderr.strip()}")

    def _names(self) -> str:
        return "".join(f"{folder.relative_to('/')}\n" for folder in self.folders)

    def _pack_folder(self, tar: tarfile.TarFile, root: Path) -> None:
        for where, folders, files in os.walk(root):
            here = Path(where)
            folders[:] = [name for name in folders if name not in _NOT_BROUGHT and here / name != self.environment]
            tar.addfile(_entry(str(here.relative_to("/")), tarfile.DIRTYPE, here.stat().st_mode))
            for name in [*files, *(name for name in folders if (here / name).is_symlink())]:
                _add_path(tar, here / name)


def start_script(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Shell text that runs the command in a folder, in the caller's environment."""
    made = [folder, *(environment[name] for name in ("HOME", "TMPDIR") if environment.get(name))]
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items() if name.isidentifier()), *command]
    return f"mkdir -p {shlex.join(map(str, made))}\ncd {shlex.quote(str(folder))}\nexec {shlex.join(words)}\n"


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, stat.S_IMODE(mode)
    return info


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int, mtime: float = 0) -> None:
    info = _entry(name, tarfile.REGTYPE, mode)
    info.size, info.mtime = len(content), int(mtime)
    tar.addfile(info, io.BytesIO(content))


def _add_path(tar: tarfile.TarFile, path: Path) -> None:
    """Adds a file or a link as it is now: others may be writing to it, and it may be gone."""
    name = str(path.relative_to("/"))
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            link = _entry(name, tarfile.SYMTYPE, status.st_mode)
            link.linkname = os.readlink(path)
            tar.addfile(link)
        elif stat.S_ISREG(status.st_mode):
            _add(tar, name, path.read_bytes(), status.st_mode, status.st_mtime)
    except FileNotFoundError:
        pass
