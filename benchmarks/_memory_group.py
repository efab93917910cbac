"""Memory cgroups of a benchmark's own, in either version, and a swap file that the host uses meanwhile: as root."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NO_GROUP = "no memory cgroup can be made here: run as root, with a writable /sys/fs/cgroup"
_EVERY_S = 0.05


@dataclass(frozen=True)
class _Files:
    limit: str
    peak: str
    used: str
    met: str


_VERSIONS = (
    (
        Path("/sys/fs/cgroup/memory"),
        _Files("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes", "memory.failcnt"),
    ),
    (Path("/sys/fs/cgroup"), _Files("memory.max", "memory.peak", "memory.current", "memory.events")),
)


@dataclass
class MemoryGroup:
    """The cgroup at `folder`: what processes in it take, with their page cache, as the kernel counts it."""

    folder: Path
    files: _Files
    _samples: list[int] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """What makes a process of _stepper.py or cap_held.py join it."""
        return ["--cgroup", str(self.folder)]

    def limit(self, nbytes: int) -> None:
        """No more than this from now on."""
        (self.folder / self.files.limit).write_text(str(nbytes))

    @property
    def peak_bytes(self) -> int:
        """The most that there ever was."""
        return int((self.folder / self.files.peak).read_text())

    @property
    def limit_met(self) -> int:
        """How often the kernel had to take memory back, or refused some, at the limit."""
        text = (self.folder / self.files.met).read_text()
        if self.files.met == "memory.failcnt":
            return int(text)
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("max "))

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        """What is taken now is looked at again and again, 20 times a second."""
        over = threading.Event()

        def look() -> None:
            while True:
                self._samples.append(int((self.folder / self.files.used).read_text()))
                if over.wait(_EVERY_S):
                    return

        looks = threading.Thread(target=look)
        looks.start()
        try:
            yield
        finally:
            over.set()
            looks.join()

    @property
    def mean_bytes(self) -> int | None:
        """Of all samples; None without any."""
        return int(statistics.fmean(self._samples)) if self._samples else None


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A cgroup without a limit, as long as this lasts. Raises SystemExit where none can be made."""
    for root, files in _VERSIONS:
        folder = root / f"sentinel-cap-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / files.limit).exists():
                break
            folder.rmdir()
    else:
        raise SystemExit(NO_GROUP)
    try:
        yield MemoryGroup(folder, files)
    finally:
        _remove(folder)


@contextlib.contextmanager
def swap_file(folder: Path, nbytes: int) -> Iterator[str]:
    """The host swaps to a file in `folder` meanwhile; gives why it does not, or ""."""
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        yield "this host has swap of its own, which would be measured too"
        return
    path = folder / f"sentinel-cap-{os.getpid()}.swap"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        finally:
            os.close(descriptor)
        refused = _tried("mkswap", str(path)) or _tried("swapon", str(path))
        try:
            yield refused
        finally:
            if not refused:
                subprocess.run(["swapoff", str(path)], check=True)
    finally:
        path.unlink(missing_ok=True)


def _tried(*command: str) -> str:
    """Why a command failed; "" if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return f"{command[0]}: {done.stderr.strip()}" if done.returncode else ""


def _remove(folder: Path) -> None:
    for _ in range(100):  # a process that has just ended is still counted for a moment
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
