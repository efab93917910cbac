"""The page trackers by name, and which one to use: the most exact that this host allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sentinel.core.errors import CapabilityError, SentinelError, UsageError
from sentinel.core.units import PAGE_BYTES, parse_bytes
from sentinel.profiler.pages import native_touch
from sentinel.profiler.pages.armed_tracker import (
    CHILDREN,
    DEVICES,
    GRANULE_BYTES,
    PINNED,
    TWICE,
    ArmedTracker,
    Reader,
)
from sentinel.profiler.pages.ebpf import EbpfReader
from sentinel.profiler.pages.protocol import PageTracker

TRACKERS: dict[str, Callable[[], Reader]] = {
    # every fault, in user code and in system calls, reads and writes apart
    "ebpf": EbpfReader,
    # userfaultfd hands each fault to a native thread: whoever takes it, reads and writes apart; some µs each
    "uffd": partial(
        Reader,
        "uffd",
        native_touch.UFFD,
        "handling page faults by userfaultfd",
        "run as root, set vm.unprivileged_userfaultfd=1, give access to /dev/userfaultfd (Linux 6.1 or later),"
        " or use --tracker perf",
        (TWICE, DEVICES, CHILDREN),
        too_old="this kernel's UFFDIO_CONTINUE cannot map a page write-protected (Linux 6.4 can)",
    ),
    # the kernel's page-fault event, of every thread; not whether it read or wrote; unprivileged, none in system calls
    "perf": partial(
        Reader,
        "perf",
        native_touch.PERF,
        "counting page faults by perf_event_open",
        "set kernel.perf_event_paranoid to 2 or less, raise ulimit -n and ulimit -l, or use --tracker pagemap",
        (PINNED, DEVICES, CHILDREN),
        ("touches",),
    ),
    # which pages the page tables map at the end of each layer: whoever touched them, with no right at all
    "pagemap": partial(
        Reader,
        "pagemap",
        native_touch.PAGEMAP,
        "reading the page tables from /proc/self/pagemap",
        "mount /proc, or use --tracker ops",
        (DEVICES, CHILDREN),
        ("touches",),
    ),
}
"""How each reads touches, the most exact first. `uffd` tells writes too, but is several times slower: `auto` never
takes it."""

AUTO = ("ebpf", "perf", "pagemap")


def parse(spec: str) -> tuple[str, int]:
    """Name and granule in bytes of `"ebpf"` (every page for itself) or `"ebpf:2MiB"` (large tensors by huge pages).

    Raises UsageError for anything else than a page tracker, or `auto`, and one of the two granules.
    """
    name, colon, granule = spec.partition(":")
    if name not in ("auto", *TRACKERS):
        raise UsageError(f"{name!r} is not a page tracker", f"use one of {', '.join(TRACKERS)}, or auto")
    if not colon:
        return name, PAGE_BYTES
    try:
        nbytes = parse_bytes(granule)
    except UsageError:
        nbytes = 0
    if nbytes not in (PAGE_BYTES, GRANULE_BYTES):
        raise UsageError(f"tracker {spec!r}: {granule!r} is not a granule", f"use {name}:4KiB or {name}:2MiB")
    if name == "uffd" and nbytes != PAGE_BYTES:
        raise UsageError("tracker 'uffd' maps one page a fault: granules save it nothing", "use uffd, or ebpf:2MiB")
    return name, nbytes


def check_words(spec: str) -> None:
    """Raises UsageError unless `spec` is `ops`, `auto` or a page tracker, the latter two perhaps with a granule."""
    if spec == "ops":
        return
    if spec.partition(":")[0] not in ("auto", *TRACKERS):
        raise UsageError(f"there is no tracker {spec!r}", f"choose one of auto, {', '.join(TRACKERS)}, ops")
    parse(spec)


def make(spec: str) -> ArmedTracker:
    """The page tracker of `spec` (see `parse`), not yet started. Raises UsageError if there is none such."""
    name, granule_bytes = parse(spec)
    if name == "auto":
        raise UsageError("'auto' is not a page tracker", f"use one of {', '.join(TRACKERS)}, or choose()")
    return ArmedTracker(TRACKERS[name](), granule_bytes)


def obstacle(name: str) -> CapabilityError | None:
    """Why this host does not allow tracker `name`, found by trying it on a page of its own; None if it does."""
    try:
        make(name).try_here()
    except CapabilityError as error:
        return error
    except SentinelError as error:
        return CapabilityError(f"tracker {name}", str(error), "use another tracker")
    return None


def choose(name: str = "auto", *, below: str = "") -> tuple[PageTracker | None, list[str]]:
    """The tracker asked for, or for `auto` the most exact that works here; and why the others were not taken.

    `name` may have a granule: `"auto:2MiB"`, see `parse`. `below`: only those that are less exact than this one,
    which works on a few pages, but not on all.

    None if `auto` finds no page tracker: operators (`ops`) remain. Raises UsageError for an unknown name, and
    CapabilityError if the tracker that was asked for by name does not work here.
    """
    kind, granule_bytes = parse(name)
    if kind != "auto":
        refused = obstacle(name)
        if refused is not None:
            raise refused
        return make(name), []
    reasons: list[str] = []
    for candidate in AUTO[AUTO.index(below) + 1 if below else 0 :]:
        refused = obstacle(candidate)
        if refused is None:
            return make(f"{candidate}:{granule_bytes}"), reasons
        reasons.append(f"{candidate}: {refused}")
    return None, reasons
