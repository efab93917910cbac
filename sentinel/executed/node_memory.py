"""How much memory a node has, how much of it is free, and how much of that the kernel would give."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from sentinel.core.units import PAGE_BYTES

_LISTS = Path("/proc/sys/vm/percpu_pagelist_high_fraction")
_SHORT = "1000000"
"""One of so many pages, or four batches, is more than this list may hold (Linux, mm/page_alloc.c)."""


def node_free_bytes(node: int) -> int:
    """Free bytes of `node`, those in the processors' own lists not included."""
    with open(f"/sys/devices/system/node/node{node}/vmstat", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * PAGE_BYTES


def node_bytes(node: int) -> int:
    """All memory of `node`."""
    found = re.search(r"MemTotal: +(\d+) kB", Path(f"/sys/devices/system/node/node{node}/meminfo").read_text())
    return int(found[1]) << 10 if found else 0


def node_room_bytes(node: int) -> int:
    """Bytes of `node` that go to whoever asks before the kernel turns to another node."""
    return room_bytes(Path("/proc/zoneinfo").read_text(), node)


def room_bytes(zoneinfo: str, node: int) -> int:
    """What is free above the low watermark, zone by zone (Linux, mm/page_alloc.c, get_page_from_freelist).

    A small zone that is kept for devices counts above its reserve, since a request of any kind may fall back to it.
    """
    pages = 0
    for zone in zoneinfo.split("\nNode "):
        if not zone.removeprefix("Node ").startswith(f"{node},"):
            continue
        found = [re.search(rule, zone) for rule in (r"pages free +(\d+)", r" low +(\d+)", r"protection: \(([\d, ]+)\)")]
        free, low, kept = (match[1] if match else "0" for match in found)
        reserve = max(int(word) for word in kept.split(","))  # of this zone against requests for higher ones
        pages += max(int(free) - int(low) - reserve, 0)
    return pages * PAGE_BYTES


def node_promotion_reserve_bytes(node: int) -> int:
    """Of the room of `node`, what the kernel's tiering keeps free for promotions to come."""
    return promotion_reserve_bytes(Path("/proc/zoneinfo").read_text(), node)


def promotion_reserve_bytes(zoneinfo: str, node: int) -> int:
    """From the low watermark to the one up to which kswapd frees under numa_balancing=2 (Linux, mm/vmscan.c)."""
    pages = 0
    for zone in zoneinfo.split("\nNode "):
        if zone.removeprefix("Node ").startswith(f"{node},"):
            low, high = (re.search(rf" {name} +(\d+)", zone) for name in ("low", "high"))
            if low and high:
                pages += 2 * (int(high[1]) - int(low[1]))  # the promotion watermark is as far above high again
    return pages * PAGE_BYTES


@contextlib.contextmanager
def exact_free_counts() -> Iterator[None]:
    """The processors' own lists of free pages are kept short, where this process may: what is free is counted then."""
    before = None
    with contextlib.suppress(OSError):
        before = _LISTS.read_text()
        _LISTS.write_text(_SHORT)
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                _LISTS.write_text(before)
