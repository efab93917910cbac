"""A folder of hard links that looks like the host's root, with only what the guest needs in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tools.numa_vm.packages import program

Unwanted = Callable[[Path], bool]


class Tree:
    """Collects files of the host under `root`, each at its own path, with the symbolic links that lead there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def inside(self, path: str | Path) -> Path:
        """Where a host path lies in the tree."""
        return self.root / Path(path).relative_to("/")

    def add(self, path: str | Path) -> None:
        """Adds one file, and every link on the way to it."""
        real = self._links_on_the_way(Path(path))
        target = self.inside(real)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(real, target)

    def add_folder(self, folder: Path, unwanted: Unwanted) -> None:
        """Adds what lies below a folder; symbolic links stay links, and what they point to is not added."""
        real = self._links_on_the_way(folder)
        for where, folders, files in os.walk(real):
            here = Path(where)
            folders[:] = [name for name in folders if not unwanted(here / name)]
            target = self.inside(here)
            target.mkdir(parents=True, exist_ok=True)
            for name in [*files, *(name for name in folders if (here / name).is_symlink())]:
                if not unwanted(here / name) and not os.path.lexists(target / name):
                    _link(here / name, target / name)

    def write(self, path: str, text: str) -> None:
        """Makes a file that the host does not have, or not so."""
        target = self.inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text)

    def symlink(self, path: str, points_to: str) -> None:
        """Makes a link, unless something is there."""
        target = self.inside(self._links_on_the_way(Path(path).parent) / Path(path).name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(target):
            target.symlink_to(points_to)

    def _links_on_the_way(self, path: Path) -> Path:
        """Copies the links among the parts of a path (such as /lib -> usr/lib); returns where it leads."""
        real = Path("/")
        todo = list(path.parts[1:])
        while todo:
            part = todo.pop(0)
            step = Path(os.path.normpath(real / part))
            if not step.is_symlink():
                real = step
                continue
            copy = self.inside(step)
            copy.parent.mkdir(parents=True, exist_ok=True)
            target = os.readlink(step)
            if not os.path.lexists(copy):
                copy.symlink_to(target)
            leads = Path(os.path.normpath(real / target))
            real, todo = Path("/"), [*leads.parts[1:], *todo]
        return real


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or another owner's file where the kernel protects hard links
        shutil.copy2(source, target)


def shared_libraries(files: Iterable[Path]) -> set[Path]:
    """The libraries outside the given files' own search paths that the dynamic loader takes for them."""
    found: set[Path] = set()
    names = [str(path) for path in files]
    ldd = program("ldd", "libc-bin")
    for start in range(0, len(names), 200):
        listed = subprocess.run([ldd, *names[start : start + 200]], capture_output=True, text=True, check=False)
        found.update(Path(name) for name in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed.stdout, re.MULTILINE))
    return found


def elf_files(folder: Path, unwanted: Unwanted) -> Sequence[Path]:
    """The programs and libraries below a folder."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not unwanted(Path(where) / name)]
        for name in files:
            path = Path(where) / name
            if (".so" in name or "." not in name) and not path.is_symlink() and not unwanted(path) and _is_elf(path):
                found.append(path)
    return found


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
