"""Tracker `perf`: the kernel's page-fault event, every one, of every thread."""

from __future__ import annotations

from sentinel.profiler.pages import native_touch
from sentinel.profiler.pages.armed_tracker import CHILDREN, DEVICES, PINNED, ArmedTracker, Reader


def perf_tracker() -> ArmedTracker:
    """Every fault; not whether it read or wrote; unprivileged, no faults inside system calls."""
    return ArmedTracker(
        Reader(
            "perf",
            native_touch.PERF,
            "counting page faults by perf_event_open",
            "set kernel.perf_event_paranoid to 2 or less, raise ulimit -n, or use --tracker pagemap",
            (PINNED, DEVICES, CHILDREN),
            ("touches",),
        )
    )
