"""NodeShare: what this process has of a budget that all processes of its job on this node share, by need.

Each process has a record in a small file of its own in memory, mode 0600: what it needs, once it knows, and what it
has. It holds a lock on that file as long as it lives, and so do forked children, which share its memory: so others see
that it lives from wherever they see the file, also from another container. Records are read and written under the lock
of one more file, which is held for that alone, so none waits for another's planning. One that has said nothing, or that
has ended, counts as having an equal part: whatever becomes of it, the sum stays within the budget.
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

FOLDER = "/dev/shm"
_RECORD_BYTES = 128
"""One write, which lies in one page and so is never cut short."""
_LOOKS = 100
"""In a second, for a lock that another process has."""
_TRIES = 16
"""A file that was removed as it was opened is opened again, 16 times at most."""


class _Record(NamedTuple):
    """`token`: of the NodeShare that wrote it. `need_bytes`: -1 where it is not known."""

    token: int
    need_bytes: int
    nbytes: int


class NodeShare:
    """`nbytes`: what this process may use now, at first at most an equal part. `alone`: why nothing is known of other
    processes; then it stays at that part. A process that makes another one for the same job begins again."""

    def __init__(self, total_bytes: int, who: Launched | None = None, folder: str = FOLDER) -> None:
        self.total_bytes, self.who = total_bytes, launched() if who is None else who
        words = f"{os.getuid()}|{self.who.job}|{self.who.size}|{self.who.local_size}"
        self._path = os.path.join(folder, f"sentinel-budget-{hashlib.sha256(words.encode()).hexdigest()[:24]}")
        self._equal_bytes = Budget(total_bytes).share_of(self.who.local_size).fast_bytes
        self.nbytes, self.alone = self._equal_bytes, ""
        self._token = secrets.randbits(48)
        self._told = False  # whether others know what this process needs
        self._own: list[int] = []  # the descriptor of its record, which is locked
        if self.who.local_size > 1:
            weakref.finalize(self, _leave, self._path, self.who, self._token, self._own, os.getpid())
            self._settle(None)

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
            with _locked(self._path):
                self._keep_record()
                part = self._part(_records(self._path, self.who), need_bytes)
                nbytes = max(part, self.nbytes) if self._told else part
                record = _Record(self._token, -1 if need_bytes is None else need_bytes, nbytes)
                os.pwrite(self._own[0], json.dumps(record).encode().ljust(_RECORD_BYTES), 0)
                self.nbytes, self.alone = nbytes, ""  # others leave it only where they were told
        except OSError as error:
            self.alone = f"{self._path}: {error.strerror or error}"

    def _keep_record(self) -> None:
        """Have the file of this process open and locked: another one where somebody has removed it."""
        if self._own and not os.fstat(self._own[0]).st_nlink:
            os.close(self._own.pop())
        if not self._own:
            record = _opened(_record_of(self._path, self.who.local_rank))
            try:
                fcntl.flock(record, fcntl.LOCK_SH | fcntl.LOCK_NB)  # one that this process made before may have it
            except BaseException:
                os.close(record)
                raise
            self._own.append(record)

    def _part(self, rows: dict[int, _Record], need_bytes: int | None) -> int:
        needs = {rank: row.need_bytes for rank, row in rows.items() if row.need_bytes >= 0}
        here, everyone = self.who.local_rank, range(self.who.local_size)
        wanted = parts_by_need(self.total_bytes, [need_bytes if n == here else needs.get(n) for n in everyone])
        held = sum(rows[n].nbytes if n in rows else self._equal_bytes for n in everyone if n != here)
        return min(wanted[here], max(self.total_bytes - held, 0))


def _leave(path: str, who: Launched, token: int, own: list[int], process: int) -> None:
    """The process has ended, or has another NodeShare by now. With the last one the files go."""
    with contextlib.suppress(OSError):
        if own and os.getpid() == process:  # and this is no forked child
            with _locked(path):
                if (record := _read(own[0])) is not None and record.token == token:
                    os.unlink(_record_of(path, who.local_rank))
                os.close(own.pop())
                if not _records(path, who):
                    for rank in range(who.local_size):  # of those that were killed
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(_record_of(path, rank))
                    os.unlink(path)
    for descriptor in own:
        os.close(descriptor)


def _record_of(path: str, rank: int) -> str:
    return f"{path}.{rank}"


def _records(path: str, who: Launched) -> dict[int, _Record]:
    """Those of the processes that live, by their rank on this node."""
    found = {}
    for rank in range(who.local_size):
        with contextlib.suppress(FileNotFoundError):
            descriptor = _opened(_record_of(path, rank), create=False)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it: it has ended
            except BlockingIOError:
                if (record := _read(descriptor)) is not None:
                    found[rank] = record
            finally:
                os.close(descriptor)
    return found


def _read(descriptor: int) -> _Record | None:
    """None where nothing was written there."""
    try:
        return _Record(*map(int, json.loads(os.pread(descriptor, _RECORD_BYTES, 0))))
    except (ValueError, TypeError, OverflowError):
        return None


def _opened(path: str, *, create: bool = True) -> int:
    """Raises OSError for a file that is not this user's own."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "is not this user's own file")


def _lock(descriptor: int) -> None:
    """Who has the lock needs it for microseconds; but it may have been stopped just then, by a debugger or a user."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(1 / _LOOKS)
    raise TimeoutError(errno.ETIMEDOUT, "another process has had it locked for a second")


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """While it is entered, this process alone looks at records."""
    for _ in range(_TRIES):
        descriptor = _opened(path)
        try:
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink:
                yield
                return
        finally:
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "is removed again and again")
