"""Whole regular files, read with a cap and written in one piece. Every failure is a FormatError."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from sentinel.core.errors import FormatError
from sentinel.core.units import format_bytes

PathLike = str | os.PathLike[str]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: nothing is fetched, from anywhere."""
PAGE_BEGINS = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
)
"""By this a page of Sentinel is known, and may be overwritten by another one."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def open_regular(path: PathLike, max_bytes: int) -> Iterator[tuple[BinaryIO, int]]:
    """The file at `path` and its length. Refuses, before reading, what is not a regular file, empty or too long."""
    with _told(path, "cannot be read"):
        _regular(path, os.stat(path).st_mode)  # a device may act on being opened: ask first
        # O_NONBLOCK: whatever took the file's place meanwhile must not keep us waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            _regular(path, status.st_mode)
            if status.st_size == 0:
                raise FormatError(path, "file", "is empty; write it again")
            if status.st_size > max_bytes:
                raise FormatError(
                    path,
                    "file",
                    f"has {format_bytes(status.st_size)}, more than the {format_bytes(max_bytes)} that such a file"
                    " may have; check that it is the file you meant",
                )
            yield file, status.st_size


def read_exactly(file: BinaryIO, nbytes: int, path: PathLike) -> bytes:
    """The next `nbytes` of `file`, whose length is known to suffice."""
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise FormatError(path, "file", f"ended after {len(data)} of {nbytes} bytes while being read; try again")
    return data


def write_whole(path: PathLike, data: bytes, mode: int = 0o666) -> None:
    """Put `data` at `path`: all of it, or the old file stays. A symbolic link keeps pointing where it did.

    `mode`: rights of a new file, less those that the user gives none. One that takes the place of another has the
    rights of that.
    """
    with _told(path, "cannot be written"):
        folder, target = _place(path)
        temporary = os.path.join(folder, f".sentinel-{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _keep_rights(target, descriptor)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):  # an interrupt may come once it has taken its place
                os.unlink(temporary)
            raise


def remove(path: PathLike) -> None:
    """Remove the file at `path` if there is one."""
    with _told(path, "cannot be removed"), suppress(FileNotFoundError):
        os.unlink(path)


def _keep_rights(target: str, descriptor: int) -> None:
    """Give the open file the rights of the one at `target`, if there is one."""
    if os.path.exists(target):
        kept = stat.S_IMODE(os.stat(target).st_mode)
        if kept != stat.S_IMODE(os.fstat(descriptor).st_mode):  # a file system without rights may refuse to be asked
            os.fchmod(descriptor, kept)


def check_writable(path: PathLike) -> None:
    """Raises the FormatError of `write_whole` as far as it is known beforehand, so that no work is lost to it."""
    with _told(path, "cannot be written"):
        folder, _ = _place(path)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def may_be_written(path: PathLike, begins: bytes) -> bool:
    """Whether nothing is at `path`, or a file that begins so: one of ours."""
    try:
        with open(path, "rb") as file:
            return file.read(len(begins)) == begins
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _place(path: PathLike) -> tuple[str, str]:
    """Folder and path of the file that `path` means, links followed."""
    target = os.path.realpath(path)
    if os.path.exists(target):
        _regular(path, os.stat(target).st_mode)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FormatError(path, "file", f"cannot be written: there is no folder {folder}; create it")
    return folder, target


def _regular(path: PathLike, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = next((name for test, name in _KINDS if test(mode)), "not a regular file")
        raise FormatError(path, "file", f"is {what}; give the path of a regular file")


@contextmanager
def _told(path: PathLike, what: str) -> Iterator[None]:
    """Turn what the operating system answers into a FormatError."""
    try:
        yield
    except OSError as error:
        remedy = "check the path" if isinstance(error, FileNotFoundError) else "check its permissions and the disk"
        raise FormatError(path, "file", f"{what}: {error.strerror} (errno {error.errno}); {remedy}") from error
    except ValueError as error:  # a NUL in the path
        raise FormatError(path, "file", f"{what}: {error}; check the path") from error
