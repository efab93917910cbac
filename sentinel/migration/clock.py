"""The engine's clock: the machine's, or one that a test turns by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from sentinel.migration.mover import sleep_until


class Clock(NamedTuple):
    """`now_ns()` reads it, `sleep_until(deadline_ns)` returns once it shows that time."""

    now_ns: Callable[[], int]
    sleep_until: Callable[[int], None]


MONOTONIC = Clock(time.monotonic_ns, sleep_until)
"""The clock by which movers time their jobs."""
