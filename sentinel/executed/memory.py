"""A node's free memory, and ballast that takes it away: pinned pages that leave a chosen number of bytes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.system.kernel import system_call

_MPOL_BIND = 2
_MADV_DONTFORK = 10
_TRIES = 4
_CLOSE_BYTES, _LARGE_BYTES = 1 << 20, 32 << 20
_LISTS = Path("/proc/sys/vm/percpu_pagelist_high_fraction")
_SHORT = "1000000"
"""One of so many pages, or four batches, is more than this list may hold (Linux, mm/page_alloc.c)."""
_libc = ctypes.CDLL(None, use_errno=True)


def node_free_bytes(node: int) -> int:
    """Free bytes of `node`, those in the processors' own lists not included."""
    with open(f"/sys/devices/system/node/node{node}/vmstat", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * PAGE_BYTES


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


class Ballast:
    """Pinned memory on `node` that leaves `left_bytes` of room there, from `__enter__` to `__exit__`.

    `took_bytes`: how much it is. `room_bytes`: what is left then. A child that is forked meanwhile has none of it.
    Raises CapabilityError if so much may not be pinned, or the node has less room than is to be left.
    """

    def __init__(self, node: int, left_bytes: int) -> None:
        self._node, self._left_bytes = node, left_bytes
        self._parts: list[tuple[int, int]] = []
        self.took_bytes = 0
        self.room_bytes = 0

    def __enter__(self) -> Ballast:
        try:
            for _ in range(_TRIES):  # page tables and lists of the kernel take some, so it takes more than one look
                spare = node_room_bytes(self._node) - self._left_bytes
                if spare < _CLOSE_BYTES:
                    break
                # page tables for it take memory too: most of it first, the rest once that is known
                self._take((spare if spare < _LARGE_BYTES else spare * 49 // 50) // PAGE_BYTES * PAGE_BYTES)
        except BaseException:
            self._give_back()
            raise
        self.room_bytes = node_room_bytes(self._node)
        if self.room_bytes < self._left_bytes - 2 * _CLOSE_BYTES:
            self._give_back()
            raise CapabilityError(
                f"leaving {format_bytes(self._left_bytes)} on node {self._node}",
                f"only {format_bytes(self.room_bytes)} are free there",
                "give the node more memory, or end what uses it",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _take(self, nbytes: int) -> None:
        address = _map(nbytes)
        self._parts.append((address, nbytes))
        mask = (ctypes.c_uint64 * 16)()
        mask[self._node // 64] = 1 << self._node % 64
        system_call("mbind", address, nbytes, _MPOL_BIND, mask, 1024, 0)
        _check("madvise", _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _MADV_DONTFORK))
        if _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)):  # brings every page in
            number = ctypes.get_errno()
            raise CapabilityError(
                f"pinning {format_bytes(nbytes)} on node {self._node}",
                os.strerror(number),
                "run as root, or raise the limit on locked memory (ulimit -l unlimited)",
            )
        self.took_bytes += nbytes

    def _give_back(self) -> None:
        while self._parts:
            address, nbytes = self._parts.pop()
            _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))


def _map(nbytes: int) -> int:
    _libc.mmap.restype = ctypes.c_void_p
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, ctypes.c_size_t(nbytes), protection, flags, -1, ctypes.c_long(0))
    if address in (None, ctypes.c_void_p(-1).value):
        raise NativeError("mmap", ctypes.get_errno())
    return int(address)


def _check(call: str, result: int) -> None:
    if result:
        raise NativeError(call, ctypes.get_errno())
