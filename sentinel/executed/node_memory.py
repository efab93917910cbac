"""How much memory a node has, how much of it is free, and how much of that the kernel would give."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sentinel.core.units import PAGE_BYTES
from sentinel.system.progress import say, telling

_LISTS = Path("/proc/sys/vm/percpu_pagelist_high_fraction")
_COLLAPSING = Path("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs")


class _Setting(NamedTuple):
    ours: str
    default: str
    """The kernel's own: put back where ours is found, which a comparison that was killed has left."""


_SETTINGS = {_LISTS: _Setting("1000000", "0"), _COLLAPSING: _Setting("1000000000", "10000")}
"""A batch of 1,000,000 pages, or four of them, is more than a processor's list may hold (Linux, mm/page_alloc.c). For
11 days khugepaged takes no 2 MiB for a huge page that it puts together: meanwhile these are neither free nor a job's.
"""
_LOOKS, _LOOK_EVERY_S = 2400, 0.05
"""For so long, 2 min, khugepaged may take for what it has begun; the process whose pages they are goes on meanwhile."""


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
    for zone in _zones(zoneinfo, node):
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
    for zone in _zones(zoneinfo, node):
        low, high = (re.search(rf" {name} +(\d+)", zone) for name in ("low", "high"))
        if low and high:
            pages += 2 * (int(high[1]) - int(low[1]))  # the promotion watermark is as far above high again
    return pages * PAGE_BYTES


def _zones(zoneinfo: str, node: int) -> list[str]:
    return [zone for zone in zoneinfo.split("\nNode ") if zone.removeprefix("Node ").startswith(f"{node},")]


@contextlib.contextmanager
def exact_free_counts() -> Iterator[None]:
    """Where this process may: the processors' own lists of free pages are kept short, and the kernel puts no huge pages
    together. What is free and what a job holds is counted then, and changes only as processes take and free memory."""
    with contextlib.ExitStack() as undo:
        for path, setting in _SETTINGS.items():
            with contextlib.suppress(OSError):
                undo.callback(write_if_possible, path, as_before_a_comparison(path, path.read_text()))
                path.write_text(setting.ours)
                if path == _COLLAPSING:
                    with telling("waiting for khugepaged to end what it has begun"):
                        _await_khugepaged()  # a write wakes it
        yield


def as_before_a_comparison(path: Path, text: str) -> str:
    """`text` of a setting, as it is to be put back: the kernel's default where it is ours, of a comparison that was
    killed, or of one that goes on; says so."""
    setting = _SETTINGS.get(path)
    if setting is None or text.strip() != setting.ours:
        return text
    say(f"{path} was set by a comparison that was killed or still runs; {setting.default} will be put back")
    return setting.default


def write_if_possible(path: Path, text: str) -> None:
    """Write a setting of the kernel; one that refuses stays as it is."""
    with contextlib.suppress(OSError):
        path.write_text(text)


def _await_khugepaged() -> None:
    """Returns once it sleeps: runnable or waiting for a lock it is at work. Says so where it does not."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_bytes() == b"khugepaged\n":  # a longer name may be cut within a letter
                for _ in range(_LOOKS):
                    if comm.with_name("stat").read_text().rpartition(")")[2].split()[0] == "S":
                        return
                    time.sleep(_LOOK_EVERY_S)
                say("khugepaged is still at work: what placements had of the node may be 2 MiB off", wrong=True)
                return
