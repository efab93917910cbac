"""NodeShare: what this process has of a budget that all processes of its job on this node share, by need.

Each process has a record in a small file in memory, mode 0600: what it needs, once it knows, and what it has. It is
read and written under a lock that is held for that alone, so none waits for another's planning. One that has said
nothing, or that has ended, counts as having an equal part: whatever becomes of it, the sum stays within the budget.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from sentinel.core.budget import Budget, parts_by_need
from sentinel.system.launched import Launched, launched
from sentinel.system.process_start import started_at

FOLDER = "/dev/shm"
_RECORD_BYTES = 128
"""Of the file, for each process: one write, which lies in one page and so is never cut short."""
_LOOKS = 100
"""In a second, for a lock that another process has."""
_TRIES = 16
"""A file that was removed as it was opened is opened anew, 16 times at most."""


class _Record(NamedTuple):
    """`started`: see process_start. `token`: of the NodeShare that wrote it. `need_bytes`: -1 where it is not known."""

    pid: int
    started: int
    token: int
    need_bytes: int
    nbytes: int


class NodeShare:
    """`nbytes`: what this process may use now, at first at most an equal part. `alone`: why nothing is known of other
    processes; then it stays at that part. A process that makes another one for the same job begins anew."""

    def __init__(self, total_bytes: int, who: Launched | None = None, folder: str = FOLDER) -> None:
        self.total_bytes, self.who = total_bytes, launched() if who is None else who
        words = f"{os.getuid()}|{self.who.job}|{self.who.size}|{self.who.local_size}"
        self._path = os.path.join(folder, f"sentinel-budget-{hashlib.sha256(words.encode()).hexdigest()[:24]}")
        self._equal_bytes = Budget(total_bytes).share_of(self.who.local_size).fast_bytes
        self.nbytes, self.alone = self._equal_bytes, ""
        self._token = secrets.randbits(48)
        self._told = False  # whether others know what this process needs
        if self.who.local_size > 1:
            self._settle(None)
            weakref.finalize(self, _leave, self._path, self.who, self._token)

    def of_need(self, need_bytes: int) -> int:
        """What this process may use where its tensors take so many bytes. It never falls, but for the first call: what
        was said to be needed is not taken from who uses it."""
        if self.who.local_size > 1:
            self._settle(need_bytes)
            self._told = True
        return self.nbytes

    def _settle(self, need_bytes: int | None) -> None:
        """Say what is needed, and take what the others leave of it."""
        try:
            with _opened(self._path) as descriptor:
                rows = _records(descriptor, self.who)
                part = self._part(rows, need_bytes)
                self.nbytes = max(part, self.nbytes) if self._told else part
                need = -1 if need_bytes is None else need_bytes
                pid, self.alone = os.getpid(), ""
                _write(descriptor, self.who, _Record(pid, started_at(pid), self._token, need, self.nbytes))
        except OSError as error:
            self.alone = f"{self._path}: {error.strerror or error}"

    def _part(self, rows: dict[int, _Record], need_bytes: int | None) -> int:
        needs = {rank: row.need_bytes for rank, row in rows.items() if row.need_bytes >= 0}
        here, everyone = self.who.local_rank, range(self.who.local_size)
        wanted = parts_by_need(self.total_bytes, [need_bytes if n == here else needs.get(n) for n in everyone])
        held = sum(rows[n].nbytes if n in rows else self._equal_bytes for n in everyone if n != here)
        return min(wanted[here], max(self.total_bytes - held, 0))


def _leave(path: str, who: Launched, token: int) -> None:
    """The process has ended, or has another NodeShare by now. With the last one the file goes."""
    with contextlib.suppress(OSError), _opened(path) as descriptor:
        rows = _records(descriptor, who)
        own = rows.get(who.local_rank)
        if own is not None and (own.token, own.pid) == (token, os.getpid()):  # and this is no forked child
            os.pwrite(descriptor, b" " * _RECORD_BYTES, who.local_rank * _RECORD_BYTES)
            if len(rows) == 1:
                os.unlink(path)


def _records(descriptor: int, who: Launched) -> dict[int, _Record]:
    """Those of the processes that live, by their rank on this node."""
    data = os.pread(descriptor, who.local_size * _RECORD_BYTES, 0)
    found = {}
    for rank in range(who.local_size):
        with contextlib.suppress(ValueError, TypeError):  # nothing was written there
            record = _Record(*json.loads(data[rank * _RECORD_BYTES : (rank + 1) * _RECORD_BYTES]))
            if record.started == started_at(record.pid):
                found[rank] = record
    return found


def _write(descriptor: int, who: Launched, record: _Record) -> None:
    os.pwrite(descriptor, json.dumps(record).encode().ljust(_RECORD_BYTES), who.local_rank * _RECORD_BYTES)


def _lock(descriptor: int) -> None:
    """Who has the lock needs it for microseconds; but it may have been stopped just then, by a debugger or a user."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(1 / _LOOKS)
    raise TimeoutError(errno.ETIMEDOUT, "another process has had it locked for a second")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """The file, locked. Raises OSError for one that is not this user's own."""
    for _ in range(_TRIES):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o600)
        try:
            _lock(descriptor)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "is not this user's own file")
            if found.st_nlink:
                yield descriptor
                return
        finally:
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "is removed again and again")
