"""Compiles a C++ library once, into the user's cache, named by the hash of all that went into it.

Contents are hashed, not paths: every checkout, virtual environment and container shares one build of the same sources
against the same headers. A build that is cut short, by whatever means, leaves neither files nor compilers behind.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import CapabilityError
from sentinel.system.progress import say, telling

_APT_REMEDY = "install a C++ compiler (Debian: apt-get install g++), or name one in CXX"
_ROOM_REMEDY = "set XDG_CACHE_HOME or TMPDIR to a folder that you may write and that has room"
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
_SCRATCH = "tmp"
AHEAD = Path(__file__).resolve().parents[1] / "_compiled"
"""Where a wheel brings what was compiled as it was made: setup.py."""

# Runs a command in a process group of its own, and ends the group when the other end of its input is closed: when this
# process ends the build, or has gone, also by SIGKILL.
_GUARD = """
exec 3<&0 </dev/null
(trap "" TERM; read -r _ <&3; kill -TERM 0; rm -rf "$0"; kill -KILL 0) 2>/dev/null &
guard=$!
"$@" 3<&-
status=$?
kill -KILL $guard
exit $status
"""


@dataclass(frozen=True)
class Library:
    """What a shared library is made of.

    `headers` only count for the hash. `compile_paths` and `link_paths` are flags that name folders of this host: they
    do not count, so `made_for` must tell all that is in them and matters. `tag` is for people.
    """

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    tag: str = ""
    compile_paths: tuple[str, ...] = ()
    link_paths: tuple[str, ...] = ()
    made_for: str = ""


class _NoRoom(OSError):
    """The compiler found no room for what it writes."""


def cache_folder() -> Path:
    """Where compiled libraries are kept: `sentinel` under XDG_CACHE_HOME, else under ~/.cache. A user without a home,
    as in a container under a number that no name belongs to, has none: nothing can be written there."""
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if base.startswith("~"):  # else it would be a folder of that name where the program runs
        base = os.devnull
    return Path(base) / "sentinel"


def made_ahead(library: Library) -> Path | None:
    """The library as this installation brought it, compiled from the same contents by whichever compiler, else None."""
    path = AHEAD / _name_ahead(library)
    return path if path.exists() else None


def compile_into(library: Library, folder: Path) -> Path:
    """Compile the library into `folder`, as AHEAD has it in an installation. Raises CapabilityError without a
    compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _name_ahead(library)
    _build(library, _compiler(library.name), target)
    return target


def compile_once(library: Library) -> Path:
    """Path of the compiled library; compiles it if the cache has none of the same content.

    Two processes may ask at once: one compiles, the other waits. Where the cache cannot be written or is full, it is
    compiled into a temporary folder, for this process alone, and stderr says so. Raises CapabilityError without a
    compiler, where the sources don't compile, or where no folder can be written.
    """
    compiler = _compiler(library.name)
    folder = cache_folder() / _folder_name(library, compiler)
    target = folder / f"{library.name}.so"
    try:
        if target.exists():  # PermissionError where the folder is somebody else's
            return target
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with telling(f"compiling {library.name}, once, into {folder.parent}"), open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _remove_scratch(folder)  # of a build that was killed: who has the lock is the only one to build here
                _build(library, compiler, target)
    except OSError as error:
        return _compile_for_now(library, compiler, f"{folder}: {error.strerror or error}")
    return target


def _compile_for_now(library: Library, compiler: str, why: str) -> Path:
    say(
        f"{library.name} is compiled for this process alone, as in every one until its cache can be written ({why})",
        wrong=True,
    )
    try:
        folder = Path(tempfile.mkdtemp(prefix="sentinel-"))
        atexit.register(_remove, folder, os.getpid())
        target = folder / f"{library.name}.so"
        with telling(f"compiling {library.name} into {folder}"):
            _build(library, compiler, target)
    except OSError as error:
        why = f"{why}; {tempfile.gettempdir()}: {error.strerror or error}"
        raise CapabilityError(f"compiling {library.name}", why, _ROOM_REMEDY) from error
    return target


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has no folder of its own
        shutil.rmtree(folder, ignore_errors=True)


def _remove_scratch(folder: Path) -> None:
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def found_compiler() -> str | None:
    """The path of the C++ compiler that is used; None without one."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _compiler(name: str) -> str:
    if found := found_compiler():
        return found
    raise CapabilityError(f"compiling {name}", "no C++ compiler was found", _APT_REMEDY)


@functools.cache
def _version(compiler: str) -> str:
    """What the compiler calls itself, but for the name that it was called by."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CapabilityError(f"running {compiler}", error.strerror or str(error), _APT_REMEDY) from error
    return done.stdout.partition(" ")[2] or os.path.realpath(compiler)


def _folder_name(library: Library, compiler: str) -> str:
    return _name_of(library, _version(compiler))


def _name_ahead(library: Library) -> str:
    return f"{_name_of(library, '')}.so"


def _name_of(library: Library, compilers_version: str) -> str:
    content = hashlib.sha256()
    for path in (*library.sources, *library.headers):
        content.update(f"{path.name}\0".encode() + path.read_bytes())
    content.update(repr((library.compile_flags, library.link_flags, compilers_version, library.made_for)).encode())
    tag = f"-{library.tag}" if library.tag else ""
    return f"{library.name}{tag}-{content.hexdigest()[:16]}"


def _build(library: Library, compiler: str, target: Path) -> None:
    """All sources at once, then one link; the finished file appears under its name in one rename."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:
        objects = [str(Path(scratch) / f"{source.stem}.o") for source in library.sources]
        commands = [
            [compiler, *library.compile_flags, *library.compile_paths, "-c", str(source), "-o", made]
            for source, made in zip(library.sources, objects, strict=True)
        ]
        _run(commands, scratch, library.name)
        linked = Path(scratch) / target.name
        link = [compiler, "-shared", *objects, "-o", str(linked), *library.link_paths, *library.link_flags]
        _run([link], scratch, library.name)
        with open(linked, "rb") as written:
            os.fsync(written.fileno())
        os.replace(linked, target)


def _run(commands: Sequence[Sequence[str]], scratch: str, name: str) -> None:
    """Runs all at once. Whatever is raised meanwhile, none of them goes on; nor does any if this process is killed."""
    guarded, alive = os.pipe()
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            guard = ["/bin/sh", "-c", _GUARD, scratch, *command]
            environment = {**os.environ, "LC_ALL": "C", "TMPDIR": scratch}
            running.append(
                subprocess.Popen(
                    guard,
                    stdin=guarded,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env=environment,
                    start_new_session=True,
                )
            )
        said = [process.communicate()[1] for process in running]
    finally:
        for process in running:
            _end(process)
        os.close(guarded)
        os.close(alive)
    for process, text in zip(running, said, strict=True):
        _require(process.returncode, text, name)


def _end(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _require(status: int, said: str, name: str) -> None:
    if status == 0:
        return
    if any(full in said for full in _FULL):
        raise _NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line for line in said.splitlines() if "error" in line] or said.splitlines() or [f"exit status {status}"]
    raise CapabilityError(f"compiling {name}", errors[0].strip(), "use a compiler for C++20 such as g++ 12")
