"""Trying a read again: what fails once on a network file system mostly goes well a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sentinel.core.interrupts import let_through

T = TypeVar("T")

WAITS_S = (0.05, 0.25)
"""Before the second and the third try."""


def tried(read: Callable[[], T], wait: Callable[[float], object] = time.sleep) -> T:
    """What `read` returns; raises what its last try raised."""
    for seconds in WAITS_S:
        try:
            return read()
        except Exception as error:  # a source of any kind: its errors are not known here
            let_through(error)
            wait(seconds)
    return read()
