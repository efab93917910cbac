"""Files of training data where they lie: on this machine, or at a URL that fsspec reads. Opened for reading only.

A URL has a scheme: `s3://bucket/a.tar`, `memory://a.tar`. What a store needs besides, such as a key, is fsspec's own
configuration. No object of fsspec is kept from one call to the next: none may be used by a child that was forked, and
fsspec itself finds the one of this process again.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf
from typing import Any, Protocol

from sentinel.core.errors import CapabilityError, FormatError
from sentinel.core.interrupts import let_through
from sentinel.data.sources.source import SourceFile

_TAGS = (
    *("etag", "generation", "md5hash", "content-md5", "blob_id", "xet_hash", "digest"),
    *("mtime", "lastmodified", "last_modified", "last-modified", "updated", "created"),
)
"""What stores call the tag of an object's content or the time of its last change, the surest first, in lower case."""
NAMED_S = 30.0
"""After so long it is looked whether the path of an open file leads to another one."""


_LASTING = (FileNotFoundError, NotADirectoryError, PermissionError)
_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
"""Of the answers of a web server those that will be the same a minute later, as errors of the kernel."""


class OutageError(FormatError):
    """A file cannot be read now, as while its store does not answer."""


class OpenedFile(Protocol):
    """A file that is read at any place, by several threads. `kept`: what its format's reader keeps while it is open.
    `indexed`: what it was when it was indexed, once that is known; `checked_s`: when it was last seen to be so; after
    `recheck_s` it is looked at again."""

    path: str
    kept: Any
    indexed: SourceFile | None
    checked_s: float
    recheck_s: float

    def read(self, at: int, nbytes: int) -> bytes:
        """Bytes from `at` on, fewer than `nbytes` only where the file ends. Raises OSError."""

    def state(self) -> SourceFile:
        """Size and time as they are now. Raises OSError."""


class LocalFile:
    """A file of this machine. Its descriptor is closed with the last reference to it."""

    recheck_s = 0.0

    def __init__(self, path: str) -> None:
        self.path, self.kept, self.checked_s, self.descriptor = path, None, -inf, -1
        self.indexed: SourceFile | None = None
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise cannot_be_read(path, "file", error) from error
        self._named_s = time.monotonic()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, at: int, nbytes: int) -> bytes:
        """As OpenedFile says. One call reads less than 2 GiB."""
        data = os.pread(self.descriptor, nbytes, at)
        if len(data) == nbytes:
            return data
        parts = [data]
        while parts[-1] and (done := sum(map(len, parts))) < nbytes:
            parts.append(os.pread(self.descriptor, nbytes - done, at + done))
        return b"".join(parts)

    def read_once(self, at: int, nbytes: int) -> bytes:
        """What one call of the kernel gives; nothing where that fails."""
        try:
            return os.pread(self.descriptor, nbytes, at)
        except OSError as error:
            let_through(error)
            return b""

    def is_as_indexed(self) -> bool:
        """Whether it is seen to be the file that was indexed; else `state` tells why not."""
        try:
            status, then = self._status(), self.indexed
        except OSError as error:
            let_through(error)
            return False
        return then is not None and status.st_mtime_ns == then[2] and status.st_size == then[1]

    def state(self) -> SourceFile:
        """As OpenedFile says."""
        status = self._status()
        return SourceFile(self.path, status.st_size, status.st_mtime_ns)

    def _status(self) -> os.stat_result:
        """That of the open file; of another one that has its name, as after a rename, once that is seen. A file that
        has no name any more is read on."""
        status = os.fstat(self.descriptor)
        if time.monotonic() - self._named_s >= NAMED_S:
            try:
                named = os.stat(self.path)
            except OSError as error:
                let_through(error)
                named = status
            if (named.st_size, named.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
                return named  # and each time from now on
            self._named_s = time.monotonic()
        return status


class StoredObject:
    """What lies at a URL. To ask for its state takes a request, so it is not asked at each read."""

    recheck_s = 30.0

    def __init__(self, url: str) -> None:
        self.path, self.kept, self.checked_s = url, None, -inf
        self.indexed: SourceFile | None = None

    def read(self, at: int, nbytes: int) -> bytes:
        """As OpenedFile says: one request. Raises FormatError where the store sends more than it is asked for."""
        if not nbytes:
            return b""
        data = bytes(ask(self.path, lambda store, name: store.cat_file(name, start=at, end=at + nbytes)))
        if len(data) > nbytes:
            what = f"its server ignores ranges: it sent {len(data)} bytes for {nbytes}; copy the files to a disk"
            raise FormatError(self.path, "URL", what)
        return data

    def state(self) -> SourceFile:
        """As OpenedFile says."""
        return _state(self.path, ask(self.path, _info))


class Stream(io.RawIOBase):
    """An opened file for libraries that read a Python file. `held`: (place, bytes) of parts that were read before."""

    def __init__(self, file: OpenedFile, nbytes: int, held: Sequence[tuple[int, bytes]] = ()) -> None:
        self._file, self._nbytes, self._held, self._at = file, nbytes, held, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """As of any file."""
        left = max(self._nbytes - self._at, 0)
        size = left if size is None or size < 0 else min(size, left)
        at, self._at = self._at, self._at + size
        for begin, data in self._held:
            if begin <= at and at + size <= begin + len(data):
                return data[at - begin : at - begin + size]
        return self._file.read(at, size)

    def readinto(self, buffer: Any) -> int:
        """As of any file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def is_url(path: str) -> bool:
    """Whether fsspec reads it."""
    return "://" in path


def name_of(path: str) -> str:
    """A path or URL as its suffix and patterns are looked for: in that of a web server without what follows `?`, such
    as a signature."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


def opened(path: str) -> OpenedFile:
    """The file at a path or URL. Raises FormatError where there is none."""
    return StoredObject(path) if is_url(path) else LocalFile(path)


def expect_what_is_asked(file: OpenedFile) -> None:
    """From now on the kernel reads no more of a file of this machine than it is asked for. Else it reads on after each
    range, as for one who reads all of the file: some 128 KiB, and megabytes where the disk is set so."""
    if isinstance(file, LocalFile):
        try:
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        except OSError as error:
            let_through(error)


def cannot_be_read(path: str, what: str, error: OSError) -> FormatError:
    """`what` of a file cannot be read: an OutageError where that may pass. Raises `error` if it is an interrupt."""
    let_through(error)
    limited = error.errno in (errno.EMFILE, errno.ENFILE)
    lasts = limited or isinstance(error, _LASTING)
    of_url = "check the URL, and that you may read it" if lasts else "check the URL, and that its store answers"
    remedy = of_url if is_url(path) else "restore it, or check the path"
    kind = FormatError if lasts else OutageError
    return kind(path, what, f"cannot be read: {error.strerror or error}; {'raise `ulimit -n`' if limited else remedy}")


def ask(url: str, question: Callable[[Any, str], Any]) -> Any:
    """What the store of a URL answers to `question(file system, name there)`. Raises OSError for whatever it raises but
    an interrupt, CapabilityError where fsspec or what it needs is missing."""
    store, name = _store_of(url)
    try:
        return question(store, name)
    except Exception as error:  # each store has errors of its own
        let_through(error)
        number, root = _errno_of(error)
        raise OSError(number, _said(root)) from error


def _errno_of(error: BaseException) -> tuple[int, BaseException]:
    """What an error of a store is to the kernel, EIO where it may pass; and what it comes of. fsspec's web servers say
    that no file is there whatever they met as they were asked for its size."""
    came_of: BaseException | None = error
    while came_of is not None:
        if status := _status_of(came_of):
            return _OF_STATUS.get(status, errno.EIO), came_of
        if isinstance(came_of, ConnectionError | TimeoutError) or type(came_of).__module__.startswith("aiohttp."):
            return errno.EIO, came_of
        came_of = came_of.__cause__
    lasting = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
    return next((number for kind, number in lasting.items() if isinstance(error, kind)), errno.EIO), error


def _status_of(error: BaseException) -> int:
    """Of HTTP, where the store's library tells one; else 0."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        told = [answer.get("ResponseMetadata", {}).get("HTTPStatusCode")]
    else:
        told = [getattr(of, name, None) for of in (error, answer) for name in ("status", "status_code")]
        told.append(getattr(error, "code", None) if told[0] is None else None)  # aiohttp's warns
    return next((int(number) for number in told if isinstance(number, int) and 400 <= number < 600), 0)


def asked_of_store(url: str, question: Callable[[Any, str], Any]) -> Any:
    """As `ask`; raises FormatError where that raises OSError."""
    try:
        return ask(url, question)
    except OSError as error:
        raise cannot_be_read(url, "URL", error) from error


def _store_of(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        store, name = url_to_fs(url)
    except ImportError as error:
        remedy = "in a checkout: pip install '.[data]', and what fsspec needs for this store"
        raise CapabilityError(f"reading {scheme}:// URLs", _said(error), remedy) from error
    except ValueError as error:
        let_through(error)
        raise FormatError(url, "URL", f"cannot be read: {_said(error)}; check its scheme") from error
    return store, name


def file_at(path: str) -> SourceFile:
    """The file at a path or URL as it is now. Raises FormatError where there is no regular file."""
    try:
        if is_url(path):
            return StoredObject(path).state()
        status = os.stat(path)
    except OSError as error:
        raise cannot_be_read(path, "file", error) from error
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(path, "file", "is not a regular file; give the files of the data set")
    return SourceFile(path, status.st_size, status.st_mtime_ns)


def files_at(paths: Sequence[str]) -> list[SourceFile]:
    """`file_at` of each; a folder of a store is listed once, rather than asked for each of its files."""
    listed: dict[str, dict[str, Any]] = {}
    found = []
    for path in paths:
        if not is_url(path):
            found.append(file_at(path))
            continue
        folder, _, name = path.rpartition("/")
        if folder not in listed:
            try:
                listed[folder] = ask(path, _listing)
            except OSError as error:  # a store that lists nothing, such as most web servers
                let_through(error)
                listed[folder] = {}
        told = listed[folder].get(name)
        found.append(file_at(path) if told is None or told.get("size") is None else _state(path, told))
    return found


def _listing(store: Any, name: str) -> dict[str, dict[str, Any]]:
    """What lies in the folder of a name, by the last part of its name, as the store has it now."""
    folder = name.rpartition("/")[0]
    store.invalidate_cache(folder)
    return {told["name"].rpartition("/")[2]: told for told in store.ls(folder, detail=True)}


def _info(store: Any, name: str) -> dict[str, Any]:
    """What the store says, at most `recheck_s` ago: many answer from the last listing of the folder, which is one or
    more requests."""
    folder = name.rpartition("/")[0]
    key = os.getpid(), id(store), folder
    if time.monotonic() - _LISTED_ANEW.get(key, -inf) >= StoredObject.recheck_s:
        store.invalidate_cache(folder)
        _LISTED_ANEW[key] = time.monotonic()
    told: dict[str, Any] = store.info(name)
    return told


_LISTED_ANEW: dict[tuple[int, int, str], float] = {}
"""Process, store and folder -> when its listing was last dropped."""


def _state(url: str, told: dict[str, Any]) -> SourceFile:
    """Size, and a number that is another one once the store's tag or time is."""
    if told.get("type") == "directory" or told.get("size") is None:
        raise FormatError(url, "file", "has no size that the store tells; give the files of the data set")
    by_name = {name.lower(): value for name, value in told.items()}
    tag = next((by_name[name] for name in _TAGS if by_name.get(name)), "")
    tag = tag.timestamp() if isinstance(tag, datetime) else tag  # listings may tell it in other words
    return SourceFile(url, int(told["size"]), int.from_bytes(hashlib.sha256(str(tag).encode()).digest()[:7], "big"))


def _said(error: BaseException) -> str:
    """The first line of an error of somebody else's, and its type where that is empty."""
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
