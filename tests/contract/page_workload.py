"""Touches of known pages, done in memory or, for the replaying tracker, told to it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import AddressRange, PageSamples, PageTracker
from tests.contract.replay_tracker import ReplayTracker


@dataclass
class Memory:
    """`touch(page, write)` within `owned`; pages count from its start."""

    owned: AddressRange
    tracker: PageTracker

    def address(self, page: int) -> int:
        return self.owned.start + page * PAGE_BYTES + page * 8 % PAGE_BYTES

    def touch(self, page: int, write: bool) -> None:
        if isinstance(self.tracker, ReplayTracker):
            self.tracker.touch(self.address(page), write)
        elif write:
            ctypes.memset(self.address(page), page % 251, 8)
        else:
            ctypes.string_at(self.address(page), 8)

    def by_system_call(self, page: int, write: bool) -> None:
        """The kernel reads from, or writes into, the page."""
        if isinstance(self.tracker, ReplayTracker):
            return self.touch(page, write)
        buffer = memoryview((ctypes.c_char * 8).from_address(self.address(page)))
        source, sink = os.pipe()
        try:
            if write:
                os.write(sink, b"12345678")
                assert os.readv(source, [buffer]) == 8
            else:
                assert os.write(sink, buffer) == 8
        finally:
            os.close(source)
            os.close(sink)
        return None

    def by_threads(self, touches: Iterable[tuple[int, bool]]) -> None:
        """Each touch by a thread of its own, born for it."""
        threads = [threading.Thread(target=self.touch, args=touch) for touch in touches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@dataclass
class Seen:
    """Layers by page, as a tracker reports them."""

    touched: Counter[int]
    read: Counter[int]
    written: Counter[int]


def seen(samples: PageSamples, owned: AddressRange) -> Seen:
    """In how many layers each page of `owned` was touched, read, written; absent pages weren't."""
    first = owned.start // PAGE_BYTES
    rows = samples.pages
    return Seen(
        Counter((rows["page"] - first).tolist()),
        Counter((rows["page"][rows["reads"] == 1] - first).tolist()),
        Counter((rows["page"][rows["writes"] == 1] - first).tolist()),
    )


def layers(memory: Memory, count: int, body: Callable[[int], None]) -> PageSamples:
    """Watches `count` layers, each with `body(layer)`."""
    memory.tracker.start([memory.owned])
    for layer in range(count):
        memory.tracker.mark(layer)
        body(layer)
    return memory.tracker.stop()
