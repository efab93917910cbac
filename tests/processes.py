"""Processes that a test starts and talks to as they run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """As `subprocess.Popen`, but a process that a failed test leaves behind is killed: Popen would wait for its end."""
    with subprocess.Popen(command, **options) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()
