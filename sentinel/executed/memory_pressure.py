"""Memory pressure on a node: pinned pages, the ballast, leave a job a chosen number of bytes there while it runs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from types import TracebackType

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.executed.cgroup import Cgroup
from sentinel.executed.node_memory import node_bytes, node_room_bytes
from sentinel.system import numa

_MADV_DONTNEED, _MADV_DONTFORK, _MADV_NOHUGEPAGE = 4, 10, 15
_TRIES = 16
_PRESSING_BYTES = 256 << 10
"""Taken at once where there is no room, and the kernel can demote what the job has too much."""
_CLOSE_BYTES, _TOLERATED_BYTES, _LARGE_BYTES = 64 << 10, 2 << 20, 32 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Ballast:
    """Pinned memory on `node`, from `__enter__` to `__exit__`, that leaves `left_bytes` to the processes of `group`.

    What a job has is what it holds there beyond what it held at the beginning, and the room that is left. Whatever
    else takes or frees memory of the node meanwhile, `keep` lets the ballast shrink or grow by as much; without a
    group it stays as it is. `pressing`: the kernel demotes here, so the ballast may press out what is too much.
    `began_bytes`: the room at the beginning; `had_bytes`: what the job had each time that `keep` looked;
    `took_bytes`: the ballast at its largest. A child forked meanwhile has none of it.
    Raises CapabilityError if so much may not be pinned, or the node has less room than is to be left.
    """

    def __init__(self, node: int, left_bytes: int, group: Cgroup | None = None, *, pressing: bool = False) -> None:
        self._node, self._left_bytes, self._group, self._pressing = node, left_bytes, group, pressing
        self._address = self._reserved = self._nbytes = self._held_before = 0
        self.took_bytes = self.began_bytes = 0
        self.had_bytes: list[int] = []

    def __enter__(self) -> Ballast:
        try:
            self._reserve()
            for _ in range(_TRIES):  # page tables and lists of the kernel take some, so it takes more than one look
                spare = node_room_bytes(self._node) - self._left_bytes
                if abs(spare) < _CLOSE_BYTES:
                    break
                # page tables for it take memory too: most of it first, the rest once that is known
                self._change(spare if spare < _LARGE_BYTES else spare * 49 // 50)
            self.began_bytes = node_room_bytes(self._node)
            if abs(self.began_bytes - self._left_bytes) > _TOLERATED_BYTES:
                raise CapabilityError(
                    f"leaving {format_bytes(self._left_bytes)} on node {self._node}",
                    f"{format_bytes(self.began_bytes)} are free there beside pinned ballast",
                    "give the node more memory, or end what uses it",
                )
            if self._group is not None:
                self._held_before = self._group.held_bytes()
            if not self._pressing:  # the job may be faster, and where nothing can be demoted a process would be ended
                numa.bind(self._address, self._reserved, self._node)
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def keep(self) -> None:
        """Look once at what the job has, and make it `left_bytes` again. To be called often."""
        if self._group is None:
            return
        room, held = self._looked(self._group)
        has = room + held - self._held_before
        self.had_bytes.append(has)
        spare = has - self._left_bytes
        if abs(spare) >= _CLOSE_BYTES:
            with contextlib.suppress(CapabilityError):  # what cannot be taken now shows in `had_bytes`
                # half of the room, since the job may take it first
                self._change(min(spare, room // 2 + (_PRESSING_BYTES if self._pressing else 0)))

    def _looked(self, group: Cgroup) -> tuple[int, int]:
        """(bytes of room, bytes that the group holds), at one moment: if the room changed meanwhile, looks again."""
        for _ in range(_TRIES):
            before, held, after = node_room_bytes(self._node), group.held_bytes(), node_room_bytes(self._node)
            if abs(after - before) < _CLOSE_BYTES:
                break
        return (before + after) // 2, held

    def _reserve(self) -> None:
        self._reserved = node_bytes(self._node) // PAGE_BYTES * PAGE_BYTES
        self._address = _map(self._reserved)
        numa.bind(self._address, self._reserved, self._node, numa.MPOL_BIND)
        for advice in (_MADV_DONTFORK, _MADV_NOHUGEPAGE):
            self._advise(0, self._reserved, advice)

    def _change(self, nbytes: int) -> None:
        """Take so many bytes more, or give them back if negative; whole pages, as far as that goes."""
        pages = int(nbytes / PAGE_BYTES)
        wanted = max(0, min(self._nbytes + pages * PAGE_BYTES, self._reserved))
        begin, count = min(wanted, self._nbytes), abs(wanted - self._nbytes)
        if wanted > self._nbytes:
            self._pin(begin, count)
        elif count:
            _check("munlock", _libc.munlock(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(count)))
            self._advise(begin, count, _MADV_DONTNEED)
        self._nbytes = wanted
        self.took_bytes = max(self.took_bytes, wanted)

    def _pin(self, begin: int, nbytes: int) -> None:
        if _libc.mlock(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(nbytes)):  # brings every page in
            number = ctypes.get_errno()
            raise CapabilityError(
                f"pinning {format_bytes(nbytes)} on node {self._node}",
                os.strerror(number),
                "run as root, or raise the limit on locked memory (ulimit -l unlimited)",
            )

    def _advise(self, begin: int, nbytes: int, advice: int) -> None:
        _check("madvise", _libc.madvise(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(nbytes), advice))

    def _give_back(self) -> None:
        if self._address:
            _libc.munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(self._reserved))
        self._address = self._nbytes = 0


def _map(nbytes: int) -> int:
    _libc.mmap.restype = ctypes.c_void_p
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, ctypes.c_size_t(nbytes), protection, flags, -1, ctypes.c_long(0))
    if address in (None, ctypes.c_void_p(-1).value):
        raise NativeError("mmap", ctypes.get_errno())
    return int(address)


def _check(call: str, result: int) -> None:
    if result:
        raise NativeError(call, ctypes.get_errno())
