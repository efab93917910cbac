"""BusyTime: for how long at least one of several threads was at something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class BusyTime:
    """`with busy:` around what is counted, in any thread; two at once count once."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._inside, self._since, self._ended_ns = 0, 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._since = self._clock()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._ended_ns += self._clock() - self._since

    @property
    def ns(self) -> int:
        """Up to now."""
        with self._lock:
            return self._ended_ns + (self._clock() - self._since if self._inside else 0)
