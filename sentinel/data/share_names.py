"""Names under which jobs of one user on one machine find one another: `share="imagenet"`.

A name is a small file in /dev/shm, mode 0600: a record a job, which says what it reads and where its arena is, and a
lock a job, which the kernel takes away when the job ends, however it does. The samples are not in it: they lie in the
sealed memory of the job that reads, which others open below /proc. So a job that is killed leaves a few KB, which the
next one takes over, and nobody can cut short what others have mapped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import struct
import time
import weakref
from typing import Any, NamedTuple

from sentinel.core.errors import CapabilityError, FormatError, UsageError
from sentinel.data.data_index import DataFiles
from sentinel.data.sample_arena import MOST_JOBS
from sentinel.data.sources.stored_file import is_url
from sentinel.runtime.process import RUNTIME

FOLDER = "/dev/shm"
SHARE_VERSION = 5
"""Of what jobs tell one another in an arena."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RECORD_BYTES = 4096
_GATE = MOST_JOBS
"""The byte whose lock a job has while it comes or goes; those before it are of the jobs."""
_LEAVING_S = 1.0
"""How long a job that goes waits for that lock."""


class Job(NamedTuple):
    """A job of a share. `descriptor`: that of its arena, in its process; `inode`: by which the arena is recognized.
    `reads`: what its plan depends on."""

    slot: int
    pid: int
    descriptor: int
    inode: int
    data: str
    reads: dict[str, Any]


class ShareName:
    """A job's place in a share, until `close`, or until it is not used any more. For one thread."""

    def __init__(self, name: str, data: str, reads: dict[str, Any]) -> None:
        """`data`: `identity_of` the data set. Raises UsageError for a name that is in use for another data set, or by
        as many jobs as may be; CapabilityError where there is no place for names."""
        self.name, self._data, self.reads = name, data, reads
        path = path_of(name)
        self._file = _entered(path)
        try:
            self.slot = self._claimed()
        except BaseException:
            os.close(self._file)
            raise
        self._leaving = weakref.finalize(self, _leave, path, self._file, self.slot)
        _lock(self._file, _GATE, fcntl.F_UNLCK)
        RUNTIME.not_inherited.add(self)

    def _claimed(self) -> int:
        for job in _jobs(self._file):
            if job.data != self._data:
                own = ", or `del` the loader of this process that has it" if job.pid == os.getpid() else ""
                what = f"share={self.name!r} is in use for another data set, by process {job.pid}"
                raise UsageError(what, f"give another name{own}")
        slot = next((slot for slot in range(MOST_JOBS) if _lock(self._file, slot, fcntl.F_WRLCK)), None)
        if slot is None:
            raise UsageError(f"share={self.name!r} is in use by {MOST_JOBS} jobs", "give another name")
        self._tell(slot, -1)  # over what a job that ended has left; who comes next must know the data set at once
        return slot

    def publish(self, descriptor: int, inode: int) -> None:
        """Others may look at the arena of this process that has this descriptor."""
        self._tell(self.slot, descriptor, inode)

    def _tell(self, slot: int, descriptor: int, inode: int = 0) -> None:
        place = {"pid": os.getpid(), "descriptor": descriptor, "inode": inode}
        record = json.dumps({**place, "data": self._data, "reads": self.reads}).encode().ljust(_RECORD_BYTES)
        try:
            os.pwrite(self._file, record, slot * _RECORD_BYTES)
        except OSError as error:
            raise _no_place(path_of(self.name), error) from error

    def agrees(self, job: Job) -> bool:
        """Whether what `job` reads is what this one needs: the same files, and the same plan."""
        return job.data == self._data and job.reads == self.reads

    @property
    def unlike(self) -> str:
        """A clause for the report on a job that reads something else; empty if there is none."""
        for job in self.others():
            if names := [name for name, mine in self.reads.items() if job.reads.get(name) != mine]:
                return f"; process {job.pid} reads for itself, with another {', '.join(names)}"
        return ""

    def others(self) -> list[Job]:
        """The other jobs that are running."""
        return [job for job in _jobs(self._file) if job.slot != self.slot]

    def alive(self, slot: int) -> bool:
        """Whether the job in this slot is running, this one aside."""
        return self._leaving.alive and _is_locked(self._file, slot)

    def close(self) -> None:
        """Leave the share; the last job takes its name away."""
        self._leaving()

    def forked(self) -> None:
        """This is a forked child: the place is its parent's."""
        if self._leaving.detach():
            os.close(self._file)


def identity_of(data: DataFiles) -> str:
    """Which files these are. Their layout's digest is not enough to take samples from another job: a copy has it, and
    so have other files of the same names and sizes."""
    root = data.root if is_url(data.root) else os.path.realpath(data.root)
    found = hashlib.sha256(f"{data.layout.digest}/{root}/".encode("utf-8", "surrogateescape"))
    found.update(data.layout.file_mtime_ns.astype("<i8").tobytes())
    return found.hexdigest()


def path_of(name: str) -> str:
    """The file of a name. Raises UsageError for what is no name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"share={name!r} is no name", "give letters, digits, dots, dashes and underscores, at most 64 of them"
        )
    return os.path.join(FOLDER, f"sentinel-{os.getuid()}-{name}.share")


def remove(name: str, *, force: bool = False) -> None:
    """Take a name away. Jobs that have it go on, those that come later do not find them. Raises UsageError where there
    is no such name, and without `force` where a job uses it."""
    path = path_of(name)
    if not os.path.lexists(path):
        raise UsageError(f"there is no share {name!r}", f"see {FOLDER} for those that are there")
    file = _opened(path, 0)
    try:
        using = [str(job.pid) for job in _jobs(file)]
        if using and not force:
            raise UsageError(f"share {name!r} is in use by process {', '.join(using)}", "end it, or give --force")
        os.unlink(path)
    finally:
        os.close(file)


def _entered(path: str) -> int:
    """The file, with its gate locked, and not one that was taken away meanwhile."""
    while True:
        file = _opened(path, os.O_CREAT)
        try:
            _lock(file, _GATE, fcntl.F_WRLCK, wait=True)
            if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _opened(path: str, flags: int) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    except OSError as error:
        raise _no_place(path, error) from error
    status = os.fstat(file)
    own = status.st_uid == os.getuid() and not status.st_mode & 0o077 and status.st_nlink <= 1
    if not stat.S_ISREG(status.st_mode) or not own:
        os.close(file)
        raise FormatError(
            path, "share", "is no regular file of one name that only this user may read and write; remove it"
        )
    return file


def _no_place(path: str, error: OSError) -> CapabilityError:
    return CapabilityError("share=", f"{path}: {error.strerror}", f"make room in {FOLDER}, or leave share= out")


def _leave(path: str, file: int, slot: int) -> None:
    """Without the gate the name stays, for the next job. It is not waited for without end: who has it may be stopped,
    or this thread itself, where garbage is collected while it makes another loader."""
    until = time.monotonic() + _LEAVING_S
    while not (gate := _lock(file, _GATE, fcntl.F_WRLCK)) and time.monotonic() < until:
        time.sleep(1e-3)
    _lock(file, slot, fcntl.F_UNLCK)
    if gate and not any(_is_locked(file, other) for other in range(MOST_JOBS)):
        try:
            if os.path.samestat(os.stat(path), os.fstat(file)):
                os.unlink(path)
        except FileNotFoundError:
            pass  # it was taken away
    os.close(file)


def _jobs(file: int) -> list[Job]:
    found = []
    for slot in range(MOST_JOBS):
        if not _is_locked(file, slot):
            continue
        try:
            told = json.loads(os.pread(file, _RECORD_BYTES, slot * _RECORD_BYTES))
            place = int(told["pid"]), int(told["descriptor"]), int(told["inode"])
            found.append(Job(slot, *place, str(told["data"]), dict(told["reads"])))
        except (ValueError, KeyError, TypeError):
            continue  # it has not said yet what it reads, or somebody else wrote there
    return found


def _lock(file: int, byte: int, kind: int, *, wait: bool = False) -> bool:
    """Whether the lock of a byte could be had, or given back. It is one of this opening of the file."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _asked(byte, kind))
    except BlockingIOError:
        return False
    return True


def _is_locked(file: int, byte: int) -> bool:
    """Whether another opening of the file has the lock."""
    found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _asked(byte, fcntl.F_WRLCK))
    return int(struct.unpack_from("h", found)[0]) != fcntl.F_UNLCK


def _asked(byte: int, kind: int) -> bytes:
    """A `struct flock` of one byte."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
