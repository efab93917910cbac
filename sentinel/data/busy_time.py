"""BusyTime: for how long at least one of several threads was at something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class BusyTime:
    """`begin` and `end` around what is counted, in any thread; two at once count once."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._inside, self._since, self._ended_ns = 0, 0, 0

    def begin(self) -> int:
        """When it was."""
        with self._lock:
            now = self._clock()
            if not self._inside:
                self._since = now
            self._inside += 1
            return now

    def end(self) -> int:
        """When it was."""
        with self._lock:
            now = self._clock()
            self._inside -= 1
            if not self._inside:
                self._ended_ns += now - self._since
            return now

    @property
    def ns(self) -> int:
        """Up to now."""
        with self._lock:
            return self._ended_ns + (self._clock() - self._since if self._inside else 0)
