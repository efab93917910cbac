"""Tracker `uffd`: userfaultfd hands each fault to a native thread."""

from __future__ import annotations

from sentinel.profiler.pages import native_touch
from sentinel.profiler.pages.armed_tracker import CHILDREN, DEVICES, TWICE, ArmedTracker, Reader


def uffd_tracker() -> ArmedTracker:
    """Every fault, whoever takes it, reads and writes apart; some µs each."""
    return ArmedTracker(
        Reader(
            "uffd",
            native_touch.UFFD,
            "handling page faults by userfaultfd",
            "run as root, set vm.unprivileged_userfaultfd=1, give access to /dev/userfaultfd (Linux 6.1 or later),"
            " or use --tracker perf",
            (TWICE, DEVICES, CHILDREN),
            too_old="this kernel's UFFDIO_CONTINUE cannot map a page write-protected (Linux 6.4 can)",
        )
    )
