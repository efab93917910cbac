"""Which page tracker to use: the most exact that this host allows."""

from __future__ import annotations

from collections.abc import Callable

from sentinel.core.errors import CapabilityError, SentinelError, UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import binding
from sentinel.profiler.pages.ebpf import ebpf_tracker
from sentinel.profiler.pages.engine import ArmedTracker
from sentinel.profiler.pages.pagemap import pagemap_tracker
from sentinel.profiler.pages.perf import perf_tracker
from sentinel.profiler.pages.protocol import PageTracker
from sentinel.profiler.pages.uffd import uffd_tracker

TRACKERS: dict[str, Callable[[], ArmedTracker]] = {
    "ebpf": ebpf_tracker,
    "uffd": uffd_tracker,
    "perf": perf_tracker,
    "pagemap": pagemap_tracker,
}
"""By name, the most exact first. `uffd` tells writes too, but is several times slower: `auto` never takes it."""

AUTO = ("ebpf", "perf", "pagemap")


def make(name: str) -> PageTracker:
    """The page tracker `name`, not yet started. Raises UsageError if there is none of that name."""
    if name not in TRACKERS:
        raise UsageError(f"{name!r} is not a page tracker", f"use one of {', '.join(TRACKERS)}")
    return TRACKERS[name]()


def obstacle(name: str) -> CapabilityError | None:
    """Why this host does not allow tracker `name`, found by trying it on a page of its own; None if it does."""
    tracker, owned = make(name), None
    try:
        owned = binding.map_range(PAGE_BYTES)
        tracker.start([owned])
        tracker.stop()
    except CapabilityError as error:
        return error
    except SentinelError as error:
        return CapabilityError(f"tracker {name}", str(error), "use another tracker")
    finally:
        if owned is not None:
            binding.unmap_range(owned)
    return None


def choose(name: str = "auto") -> tuple[PageTracker | None, list[str]]:
    """The tracker asked for, or for `auto` the most exact that works here; and why the others were not taken.

    None if `auto` finds no page tracker: operators (`ops`) remain. Raises UsageError for an unknown name, and
    CapabilityError if the tracker that was asked for by name does not work here.
    """
    if name != "auto":
        found = make(name)
        refused = obstacle(name)
        if refused is not None:
            raise refused
        return found, []
    reasons: list[str] = []
    for candidate in AUTO:
        refused = obstacle(candidate)
        if refused is None:
            return make(candidate), reasons
        reasons.append(f"{candidate}: {refused}")
    return None, reasons
