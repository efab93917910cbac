"""Page trackers: who touched which pages of the profiling arena, in which layer."""

from sentinel.profiler.pages.choice import AUTO, TRACKERS, choose, make, obstacle
from sentinel.profiler.pages.engine import ArmedTracker
from sentinel.profiler.pages.protocol import AddressRange, PageSamples, PageTracker, on_ring
from sentinel.profiler.pages.replay import ReplayTracker

__all__ = [
    "AUTO",
    "TRACKERS",
    "AddressRange",
    "ArmedTracker",
    "PageSamples",
    "PageTracker",
    "ReplayTracker",
    "choose",
    "make",
    "obstacle",
    "on_ring",
]
