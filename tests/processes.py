"""Processes that a test starts and talks to as they run, and what they and threads come to."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LONGEST_S = 600.0
"""However busy the host is: what takes longer does not come at all."""


def until(true: Callable[[], object], pause_s: float = 1e-3) -> None:
    """Returns once `true()` is."""
    deadline = time.monotonic() + LONGEST_S
    while not true():
        assert time.monotonic() < deadline, f"not true after {LONGEST_S:.0f} s"
        time.sleep(pause_s)


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """As `subprocess.Popen`, but a process that a failed test leaves behind is killed: Popen would wait for its end."""
    with subprocess.Popen(command, **options) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()
