"""Threads that bring samples: none is left as the interpreter ends."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

LONGEST_END_S = 10.0
"""How long the end of a program waits for reads that are under way, all of them together."""


class ReadingThread(threading.Thread):
    """A daemon that ends soon after `stopping` is set, at the latest as the program ends.

    CPython unwinds the stack of a daemon that asks for the GIL while the interpreter ends. If a library's C++ is on
    that stack, as one that decodes samples, the process ends by std::terminate, whatever it has computed.
    """

    def __init__(self, name: str, stopping: threading.Event, work: Callable[..., None], *given: Any) -> None:
        super().__init__(name=name, target=work, args=given, daemon=True)
        self.stopping = stopping


@atexit.register
def _end_all() -> None:
    deadline = time.monotonic() + LONGEST_END_S
    left = [thread for thread in threading.enumerate() if isinstance(thread, ReadingThread)]
    for thread in left:
        thread.stopping.set()
    for thread in left:
        thread.join(max(deadline - time.monotonic(), 0.0))
