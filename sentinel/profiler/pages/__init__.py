"""Page trackers: who touched which pages of the profiling arena, in which layer.

    tracker, reasons = choose("auto")           # None: no page tracker works here, operators remain
    tracker.start([AddressRange(base, base + reserved_bytes)])    # the exclusive arena's whole reservation
    tracker.mark(0)                             # the step begins; then, as the last thing in each tick:
    tracker.mark(layer)                         # the layer that begins now; -1 for stretches that do not count
    samples = tracker.stop()                    # at the step's end: memory is private again

`start` and `stop` change what is under the arena's addresses: call them between steps, from its owner's thread.
"""

from sentinel.profiler.pages.armed_tracker import ArmedTracker
from sentinel.profiler.pages.protocol import AddressRange, PageSamples, PageTracker
from sentinel.profiler.pages.trackers import AUTO, TRACKERS, choose, make, obstacle

__all__ = [
    "AUTO",
    "TRACKERS",
    "AddressRange",
    "ArmedTracker",
    "PageSamples",
    "PageTracker",
    "choose",
    "make",
    "obstacle",
]
