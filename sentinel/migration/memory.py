"""torch's CPU memory under our control: record each tensor on its own pages, or serve planned slots."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES, format_bytes
from sentinel.profiler import torch_shim
from sentinel.runtime import RUNTIME
from sentinel.system import limits, native

ALLOC, FREE, TICK = 1, 2, 3
"""`kind` of an event. A FREE carries no length: it ends the last ALLOC of its address."""

SMALL, FALLBACK, FOREIGN, SLOT = 1, 2, 4, 8
"""Bits of `flags`: under 1 KiB; from malloc for another reason; by another thread; from a planned slot."""

GRANULE_BYTES = 512
"""Slot offsets are multiples of this."""

EVENT_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("address", "<u8"),
        ("nbytes", "<u8"),
        ("time_ns", "<u8"),
        ("layer", "<i4"),
        ("ordinal", "<i4"),
        ("flags", "<u4"),
        ("kind", "u1"),
        ("reserved", "u1", (3,)),
    ]
)

_LEAST_RESERVED_BYTES = 1 << 26
_LOG_BYTES = (1 << 24) * EVENT_DTYPE.itemsize  # of writable address space, kernel_profiler/src/log.cpp
_PARTS = 4  # two arenas, a tracker's view of the first, and as much for whatever else the job does


@dataclass(frozen=True)
class MemoryCounters:
    """Since the process first installed. `fallback`: reason -> (allocations, bytes). Managed bytes are those
    that tensors asked for, unmanaged ones malloc's usable sizes. `fitted_bytes`: of the served ones, those in slots
    for which the plan expected another size. `unlike_bytes`: by how much sizes differed from those that the plan
    expected, all of an allocation that it did not expect."""

    served: int
    served_bytes: int
    fitted_bytes: int
    unlike_bytes: int
    fallback: dict[str, tuple[int, int]]
    live_bytes: int
    peak_live_bytes: int
    unmanaged_live_bytes: int
    unmanaged_peak_bytes: int


class ManagedMemory:
    """The allocator, while it is installed; at most one per process, owned by the thread that installed it.

    Only that thread's allocations of 1 KiB and more are managed; the calls that change the mode are its own
    too. Install, uninstall and change modes between steps, when no operator runs. Storages stay valid
    whatever is called afterwards.
    """

    def __init__(self) -> None:
        self._native, self._quick = native.library(), native.quick()
        self._tick = self._quick["sn_tick"]  # its argument has no type, whose check takes as long as the call
        self._table = ctypes.c_int32.from_address(self._quick.sn_table_in_use())
        placement = _placement_range()
        self.placement_base, self.placement_bytes = int(placement.base), int(placement.reserved_bytes)
        self._huge = np.zeros(0, np.int64)  # the 2 MiB chunks that may be huge pages

    @classmethod
    def install(cls) -> ManagedMemory:
        """`reserve` and `activate`."""
        memory = cls.reserve()
        memory.activate()
        return memory

    @classmethod
    def reserve(cls) -> ManagedMemory:
        """Address space for the arenas; the calling thread becomes the owner. torch allocates as before.

        Raises CapabilityError if there is no compiler, or this is a forked child; UsageError if one is installed.
        """
        cls._require_none()
        torch_shim.library()
        _create(native.library())
        return cls()

    def activate(self) -> None:
        """Our allocator becomes torch's. Whatever cuts this short, `uninstall` takes it back.

        Raises CapabilityError, with nothing changed, if another allocator is in place; UsageError as `reserve`.
        """
        self._require_none()
        RUNTIME.memory = self
        try:
            self._take_over_torch()
        except BaseException:
            self.uninstall()
            raise
        self.trim()

    def _take_over_torch(self) -> None:
        install = torch_shim.function("sn_shim_install", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        holder = ctypes.create_string_buffer(256)
        if install(holder, len(holder)) != 0:
            raise CapabilityError(
                "installing torch's CPU allocator",
                f"{holder.value.decode()} holds it",
                "start sentinel before, or without, the library that installed that",
            )

    def uninstall(self) -> None:
        """Stock allocation is back; live storages stay valid. Does nothing if this memory is not installed."""
        if RUNTIME.memory is not self:
            return
        self.give_back()
        native.check("sn_pass_through", self._native.sn_pass_through(), _OWNER)
        native.check("sn_shim_uninstall", torch_shim.function("sn_shim_uninstall", ctypes.c_int)())
        RUNTIME.memory = None

    @staticmethod
    def _require_none() -> None:
        if RUNTIME.memory is not None:
            raise UsageError("memory is managed already", "uninstall() the ManagedMemory in use first")

    def own(self) -> None:
        """The calling thread becomes the owner, in place of one that has ended, or that allocates no more."""
        self._require_installed()
        native.check("sn_memory_own", self._native.sn_memory_own(), _OWNER)

    def record(self) -> None:
        """From now on each allocation gets its own pages and is logged; the log starts empty."""
        self._require_installed()
        native.check("sn_record", self._native.sn_record(), _OWNER)

    def pass_through(self) -> None:
        """From now on allocations come from malloc. Free pages of the exclusive arena go back to the system."""
        self._require_installed()
        native.check("sn_pass_through", self._native.sn_pass_through(), _OWNER)

    def place(
        self,
        keys: NDArray[np.int64],
        offsets: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        extent_bytes: int,
        *,
        log: bool = False,
    ) -> None:
        """From now on the allocation `keys[i]` = (layer, ordinal) is served at `placement_base + offsets[i]`, if it
        fits in `nbytes[i]` and those bytes are free in fact; else it comes from malloc and is counted.

        `keys` (n, 2), no row twice; `offsets` (n,), multiples of GRANULE_BYTES; slots end within `extent_bytes`.
        May be called again while tenants of an earlier table live. With `log`, events are recorded again.
        Raises UsageError for a table that breaks these rules.
        """
        self._require_installed()
        columns = _columns(keys, offsets, nbytes)
        result = self._native.sn_place(len(keys), *_pointers(columns), extent_bytes, int(log))
        _check_placed("sn_place", result)

    def place_also(
        self,
        keys: NDArray[np.int64],
        offsets: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        extent_bytes: int,
    ) -> int:
        """One table more beside that of `place`, for steps of another shape; returns its number, up to 9.

        From now on the sizes of the first allocations of each step tell which table serves it. Raises UsageError
        for a table that breaks the rules of `place`, NativeError (ENOSPC) for the eleventh.
        """
        self._require_installed()
        columns = _columns(keys, offsets, nbytes)
        result = self._native.sn_place_also(len(keys), *_pointers(columns), extent_bytes)
        return _check_placed("sn_place_also", result)

    def set_huge_pages(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Only these ranges (offset, nbytes) of the placement arena may be huge pages from now on: ascending, multiples
        of HUGE_PAGE_BYTES, within what the tables cover. Raises NativeError (EINVAL) for others.

        Where it was otherwise before, pages are dropped once no tensor holds them, so that they are born again.
        """
        self._require_installed()
        rows = np.array(ranges, np.uint64).reshape(-1, 2)
        columns = [np.ascontiguousarray(column) for column in rows.T]
        native.check("sn_placement_huge", self._native.sn_placement_huge(len(rows), *_pointers(columns)))
        before, self._huge = self._huge, _chunks(ranges)
        for chunk in np.setdiff1d(before, self._huge).tolist():
            self.discard(chunk * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES)

    def use_table(self, number: int) -> None:
        """The slots of this table are served, until what a step asks for tells otherwise."""
        native.check("sn_use_table", self._native.sn_use_table(number))

    @property
    def table(self) -> int:
        """The number of the table that serves now; that of `place` is 0."""
        return self._table.value

    def tick(self, layer: int | None) -> None:
        """The allocations that follow belong to `layer`, numbered from 0. None: unsynchronised. Owner's thread only;
        from another one it does nothing."""
        self._tick(-1 if layer is None else layer)

    def events(self) -> NDArray[np.void]:
        """A copy of the log, by `seq`. Raises NativeError (ENOBUFS) if events were lost: 16 Mi of them fit."""
        lost = self._native.sn_log_lost()
        if lost:
            raise NativeError(f"sn_log_copy: {lost} events lost", 105, "record a shorter step")
        held = np.empty(self._native.sn_log_count(), dtype=EVENT_DTYPE)
        taken = self._native.sn_log_copy(0, len(held), held.ctypes.data)
        return held[:taken][np.argsort(held["seq"][:taken], kind="stable")]

    def counters(self) -> MemoryCounters:
        """What was served, by what, and what is live now."""
        raw = native.Counters()
        self._native.sn_memory_counters(ctypes.byref(raw))
        fallback = {
            why: (int(raw.fallback[i]), int(raw.fallback_bytes[i]))
            for i, why in enumerate(native.WHY)
            if raw.fallback[i]
        }
        return MemoryCounters(
            served=raw.served,
            served_bytes=raw.served_bytes,
            fitted_bytes=self._native.sn_placement_fitted(),
            unlike_bytes=self._native.sn_placement_unlike(),
            fallback=fallback,
            live_bytes=raw.live_bytes,
            peak_live_bytes=raw.peak_live_bytes,
            unmanaged_live_bytes=raw.unmanaged_live_bytes,
            unmanaged_peak_bytes=raw.unmanaged_peak_bytes,
        )

    def reset_peaks(self) -> None:
        """Both peaks restart from what is live now."""
        self._native.sn_memory_reset_peaks()

    def contains(self, address: int) -> bool:
        """Does `address` lie in one of the two arenas?"""
        return bool(self._quick.sn_memory_contains(address))

    def exclusive_extent(self) -> tuple[int, int, int]:
        """Base address of the exclusive arena, bytes ever handed out, and bytes of address space reserved for it."""
        found = native.Range()
        native.check("sn_exclusive_range", self._native.sn_exclusive_range(ctypes.byref(found)))
        return found.base, found.used_bytes, found.reserved_bytes

    def note_on_limit(self) -> str:
        """What a report must say where the limit on address space left little for the arenas; else ""."""
        _, _, reserved = self.exclusive_extent()
        if reserved >= limits.arena_bytes() or limits.address_space_left() is None:
            return ""
        return (
            f"the limit on address space (ulimit -v) leaves {format_bytes(reserved)} for tensors, and as much for those"
            " of the profiled step: what goes beyond comes from malloc and is not managed"
        )

    def discard(self, offset: int, nbytes: int) -> int:
        """Drop the whole pages within [placement_base + offset, + nbytes) that no tensor has. Returns their bytes. The
        others are dropped as their tensors are freed.

        Their next tenant's pages are born by the arena's memory policy. What is of a page only in part stays: the
        rest of it may be a live tensor's, and the kernel drops no less than a page. Any thread.
        """
        return max(int(self._native.sn_placement_discard(offset, nbytes)), 0)

    def let_tensors_have_huge_pages(self, may: bool) -> None:
        """Whether chunks of 2 MiB that one tensor of the exclusive arena fills, from now on, may be huge pages."""
        native.function("sn_exclusive_huge", None, ctypes.c_int)(int(may))

    def give_back(self) -> int:
        """Frees what moved storages have left (see `adopt`); how many bytes that were. At a step boundary."""
        nbytes = int(torch_shim.function("sn_shim_give_back", ctypes.c_uint64)())
        if nbytes:
            self.trim()
        return nbytes

    def trim(self) -> None:
        """Returns what malloc holds unused to the system."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
        if trim is not None:
            trim(ctypes.c_size_t(0))

    def _require_installed(self) -> None:
        if RUNTIME.memory is not self:
            raise UsageError("this memory is no longer managed", "call ManagedMemory.install() again")


_OWNER = "call it from the thread that installed the memory, not in a forked child"


def _chunks(ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The numbers of the huge pages in these ranges."""
    numbers = [np.arange(at // HUGE_PAGE_BYTES, (at + nbytes) // HUGE_PAGE_BYTES) for at, nbytes in ranges]
    return np.concatenate([np.zeros(0, np.int64), *numbers])


def _columns(keys: NDArray[np.int64], offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> list[NDArray[Any]]:
    columns: list[NDArray[Any]] = [np.ascontiguousarray(keys[:, i], dtype=np.int32) for i in (0, 1)]
    columns += [np.ascontiguousarray(part, dtype=np.uint64) for part in (offsets, nbytes)]
    if {len(column) for column in columns} != {len(keys)}:
        raise UsageError("keys, offsets and nbytes have unlike lengths", "give one row per slot")
    return columns


def _pointers(columns: list[NDArray[Any]]) -> list[int]:
    return [column.ctypes.data for column in columns]


def _check_placed(call: str, result: int) -> int:
    if result == -22:
        raise UsageError(
            "the slots can't be served",
            f"give distinct keys, offsets that are multiples of {GRANULE_BYTES}, slots within the extent",
        )
    return native.check(call, result, _OWNER)


def _create(library: ctypes.CDLL) -> None:
    """The arenas, unless there are some; as much address space as limits on it (ulimit -v, ulimit -d) leave."""
    if mmap.PAGESIZE != PAGE_BYTES:
        raise CapabilityError(
            "managing the memory of tensors",
            f"this kernel's pages have {mmap.PAGESIZE} bytes; touches and migrations are counted in pages of"
            f" {PAGE_BYTES}",
            "use a kernel with 4 KiB pages; planning and simulating saved profiles works here",
        )
    result = library.sn_memory_create(*_arena_bytes())
    if result == -errno.ENOLCK:
        raise CapabilityError("managing the memory of tensors", *native.LOCKED)
    if result < 0:
        raise CapabilityError(
            "reserving address space for the arenas",
            str(NativeError("sn_memory_create", -result)),
            "raise the limits on address space and private memory (ulimit -v unlimited, ulimit -d unlimited); in a"
            " forked child use another process",
        )


def _arena_bytes() -> tuple[int, int]:
    """What to ask for: address space of the exclusive arena, and of the placement arena."""
    wanted = limits.arena_bytes()
    if (left := limits.address_space_left()) is not None:
        wanted = min(wanted, max((left - _LOG_BYTES) // _PARTS, _LEAST_RESERVED_BYTES))
    if (left := limits.private_memory_left()) is not None:
        wanted = min(wanted, max(limits.RESERVED_TIMES_MEMORY * (left - _LOG_BYTES), _LEAST_RESERVED_BYTES))
    return wanted, wanted


def _placement_range() -> native.Range:
    found = native.Range()
    native.check("sn_placement_range", native.library().sn_placement_range(ctypes.byref(found)))
    return found
