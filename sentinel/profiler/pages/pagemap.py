"""Tracker `pagemap`: reads from the page tables which pages are mapped at the end of each layer."""

from __future__ import annotations

from sentinel.profiler.pages import native_touch
from sentinel.profiler.pages.armed_tracker import CHILDREN, DEVICES, ArmedTracker, Reader


def pagemap_tracker() -> ArmedTracker:
    """Every touched page, whoever touched it, with no right at all; not whether it was read or written."""
    return ArmedTracker(
        Reader(
            "pagemap",
            native_touch.PAGEMAP,
            "reading the page tables from /proc/self/pagemap",
            "mount /proc, or use --tracker ops",
            (DEVICES, CHILDREN),
            ("touches",),
        )
    )
