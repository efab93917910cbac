"""Compiles a C++ library once, into the user's cache, named by the hash of all that went into it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import CapabilityError
from sentinel.system.progress import telling

_APT_REMEDY = "install a C++ compiler (Debian: apt-get install g++), or name one in CXX"


@dataclass(frozen=True)
class Library:
    """What a shared library is made of. `headers` only count for the hash; `tag` names what it was compiled against."""

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    tag: str = ""


def cache_folder() -> Path:
    """Where compiled libraries are kept: `sentinel` under XDG_CACHE_HOME, else under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sentinel"


def compile_once(library: Library) -> Path:
    """Path of the compiled library; compiles it if the cache has none of the same content.

    Two processes may ask at once: one compiles, the other waits. Raises CapabilityError without a compiler,
    where the cache can't be written, or where the sources don't compile; nothing has changed then.
    """
    compiler = _compiler(library.name)
    folder = cache_folder() / _folder_name(library, compiler)
    target = folder / f"{library.name}.so"
    try:
        if target.exists():  # PermissionError where the folder is somebody else's
            return target
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                with telling(f"compiling {library.name}, once, into {folder.parent}"):
                    _build(library, compiler, target)
    except OSError as error:
        raise CapabilityError(
            f"compiling {library.name} into {folder}", str(error), "set XDG_CACHE_HOME to a folder you may write"
        ) from error
    return target


def _compiler(name: str) -> str:
    for candidate in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(candidate) if candidate else None
        if found:
            return found
    raise CapabilityError(f"compiling {name}", "no C++ compiler was found", _APT_REMEDY)


def _folder_name(library: Library, compiler: str) -> str:
    content = hashlib.sha256()
    for path in (*library.sources, *library.headers):
        content.update(f"{path.name}\0".encode() + path.read_bytes())
    content.update(repr((library.compile_flags, library.link_flags, os.path.realpath(compiler))).encode())
    tag = f"-{library.tag}" if library.tag else ""
    return f"{library.name}{tag}-{content.hexdigest()[:16]}"


def _build(library: Library, compiler: str, target: Path) -> None:
    """All sources at once, then one link; the finished file appears under its name in one rename."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [str(Path(scratch) / f"{source.stem}.o") for source in library.sources]
        commands = [
            [compiler, *library.compile_flags, "-c", str(source), "-o", made]
            for source, made in zip(library.sources, objects, strict=True)
        ]
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        said = [process.communicate()[1] for process in running]
        for process, text in zip(running, said, strict=True):
            _require(process.returncode, text, library.name)
        linked = Path(scratch) / target.name
        link = [compiler, "-shared", *objects, "-o", str(linked), *library.link_flags]
        done = subprocess.run(link, stderr=subprocess.PIPE, text=True, check=False)
        _require(done.returncode, done.stderr, library.name)
        os.replace(linked, target)


def _require(status: int, said: str, name: str) -> None:
    if status == 0:
        return
    errors = [line for line in said.splitlines() if "error" in line] or said.splitlines() or [f"exit status {status}"]
    raise CapabilityError(f"compiling {name}", errors[0].strip(), "use a compiler for C++20 such as g++ 12")
