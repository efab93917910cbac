"""Trying a read again: what fails once on a network file system mostly goes well a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sentinel.core.interrupts import let_through
from sentinel.data.sources.stored_file import OutageError
from sentinel.system.progress import say

T = TypeVar("T")

WAITS_S = (0.05, 0.25)
"""Before the second and the third try."""
OUTAGE_S = 60.0
"""How long a store that does not answer is asked again by whom nobody else brings the samples."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0


def tried(read: Callable[[], T], wait: Callable[[float], object] = time.sleep) -> T:
    """What `read` returns; raises what its last try raised."""
    for seconds in WAITS_S:
        try:
            return read()
        except Exception as error:  # a source of any kind: its errors are not known here
            let_through(error)
            wait(seconds)
    return read()


class Outages:
    """Of the files of a data set, as one process meets them. For several threads, which wait for the same end."""

    def __init__(self) -> None:
        self._began_s = self._last_s = -OUTAGE_S
        """Of the last one: when it began, and when a read failed last in it."""

    def endured(self, read: Callable[[], T]) -> T:
        """What `read` returns: as `tried`, and again until an outage has lasted OUTAGE_S."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                found = tried(read)
            except OutageError as error:
                now = time.monotonic()
                if now - self._last_s > OUTAGE_S:
                    self._began_s = now
                    said = error.rule.partition(";")[0]
                    say(f"{error.path} {said}: it is tried again for up to {OUTAGE_S:.0f} s", wrong=True)
                self._last_s = now
                left_s = OUTAGE_S - (now - self._began_s)
                if left_s <= 0:
                    raise
            else:
                if pause > _FIRST_PAUSE_S:  # it has ended; what others read meanwhile says nothing of this file
                    self._last_s = -OUTAGE_S
                return found
            time.sleep(min(pause, left_s))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
