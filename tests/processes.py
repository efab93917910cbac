"""Processes that a test starts and talks to as they run, and what they and threads come to."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST_S = 600.0
"""However busy the host is: what takes longer does not come at all."""


def until(true: Callable[[], object], pause_s: float = 1e-3) -> None:
    """Returns once `true()` is."""
    deadline = time.monotonic() + LONGEST_S
    while not true():
        assert time.monotonic() < deadline, f"not true after {LONGEST_S:.0f} s"
        time.sleep(pause_s)


def threads() -> set[str]:
    """Numbers of this process's. The kernel lists one for a moment after it was joined: wait for those that are to have
    ended `until` they are not among them."""
    return set(os.listdir("/proc/self/task"))


def mapped_for_tensors() -> list[str]:
    """Lines of this process's mappings that a tracker or frames of tensors made. Memory for training data is none: of a
    loader that an earlier test used it may stay until objects in cycles are collected."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "memfd:sentinel" in line and "memfd:sentinel-samples" not in line]


def without_progress(stderr: str) -> list[str]:
    """Its lines, but those of work that says how long it takes: on a busy host that may be any."""
    return [line for line in stderr.splitlines() if not line.endswith(" so far")]


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """As `subprocess.Popen`, but a process that a failed test leaves behind is killed: Popen would wait for its end."""
    with subprocess.Popen(command, **options) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()
