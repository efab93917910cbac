"""The engine's clock: the machine's, or one that a test turns by hand."""

from __future__ import annotations

import ctypes
import errno
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sentinel.system import native


def sleep_until(deadline_ns: int) -> None:
    """Sleep until `time.monotonic_ns()` is `deadline_ns`, precisely; other threads run, signals are handled."""
    sleep = _sleep()
    while sleep(deadline_ns) == -errno.EINTR:
        pass


@functools.cache
def _sleep() -> Any:
    return native.function("sn_sleep_until", ctypes.c_int, ctypes.c_uint64)


class Clock(NamedTuple):
    """`now_ns()` reads it, `sleep_until(deadline_ns)` returns once it shows that time."""

    now_ns: Callable[[], int]
    sleep_until: Callable[[int], None]


MONOTONIC = Clock(time.monotonic_ns, sleep_until)
"""The clock by which movers time their jobs."""
