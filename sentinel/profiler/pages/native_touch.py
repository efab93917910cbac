"""The arm and touch parts of the native library, with Python's types and errors."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.trace import PAGE_RUN_DTYPE
from sentinel.profiler.pages.protocol import AddressRange
from sentinel.system import limits, native

TABLE, PAGEMAP, PERF, UFFD = range(4)
"""Who fills the table of touched pages: SN_TOUCH_*."""
IN_GRANULE = 8
"""Beside SEEN_*: a run of granules, which fault as one."""

MAX_RANGES = 8  # SN_ARM_RANGES

_U64, _INT, _PTR = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p


class TouchState(ctypes.Structure):
    """`sn_touch_state`."""

    _fields_ = (
        ("unit_pages", _U64),
        ("lost", _U64),
        ("late", _U64),
        ("sees_system_calls", _U64),
        ("live_peak_bytes", _U64),
        ("held_peak_bytes", _U64),
        ("given_up_bytes", _U64),
    )


def map_range(nbytes: int) -> AddressRange:
    """Private memory that may be backed; give it back by `unmap_range`."""
    base = _U64()
    map_at(base, nbytes)
    return AddressRange(base.value, base.value + nbytes)


def map_at(base: ctypes.c_uint64, nbytes: int) -> None:
    """As `map_range`; the library writes the address to `base`, so that no interrupt loses it."""
    call = native.function("sn_arm_map", _INT, _U64, _PTR)
    native.check("sn_arm_map", call(nbytes, ctypes.byref(base)))


def unmap_range(owned: AddressRange) -> None:
    """Gives back what `map_range` gave."""
    native.check("sn_arm_unmap", native.function("sn_arm_unmap", _INT, _U64)(owned.start))


def unmap_at(base: ctypes.c_uint64) -> None:
    """Gives back what `map_at` wrote to `base`, which is 0 afterwards. Does nothing where it is, or was given back."""
    if base.value:
        result = native.function("sn_arm_unmap", _INT, _U64)(base.value)
        native.check("sn_arm_unmap", 0 if result == -errno.EPERM else result)
        base.value = 0


def guarded() -> bool:
    """Whether other threads can be held back here while `back` and `unback` replace memory: it needs userfaultfd."""
    return int(native.function("sn_arm_guarded", _INT)()) == 0


def _replacing(name: str, guarded: bool, *arguments: Any) -> Any:
    """`name` of the library. Not guarded, it keeps the GIL, so that Python's threads can't write meanwhile; guarded,
    it must not, as a thread that waits for it may hold a lock of somebody who waits for the GIL."""
    bound = (native.library() if guarded else native.quick())[name]
    bound.restype, bound.argtypes = _INT, arguments
    return bound


def back(owned: AddressRange, guarded: bool) -> None:
    """Puts a memfd under `owned`. UsageError if it is neither of the exclusive arena nor of `map_range`;
    CapabilityError where the process locks all that it maps, or the kernel counts what it promises: memory of a memfd
    counts as it is written, and where none is left the process dies, instead of being refused a tensor."""
    if limits.promises_no_more_than_there_is():
        raise CapabilityError(
            "watching pages of memory",
            "the kernel promises no more memory than there is (vm.overcommit_memory=2), and would end the process where"
            " a watched step needs more",
            "set vm.overcommit_memory to 0 or 1, or use --tracker ops",
        )
    result = _replacing("sn_arm_back", guarded, _U64, _U64, _INT)(owned.start, owned.nbytes, int(guarded))
    if result in (-errno.EPERM, -errno.ENOSYS):
        _require_memfd()
    if result == -errno.EPERM:
        raise UsageError(
            f"[{owned.start:#x}, {owned.stop:#x}) is not memory of the profiling arena",
            "watch the arena's reservation, or memory from map_range",
        )
    if result == -errno.ENOLCK:
        raise CapabilityError("watching pages of memory", *native.LOCKED)
    native.check("sn_arm_back", result)


def leave_room(nbytes: int | None) -> None:
    """What the container leaves to this process, None without a limit: no more than a quarter is prepared ahead."""
    native.function("sn_arm_room", None, _U64)(2**64 - 1 if nbytes is None else nbytes)


def is_backed(owned: AddressRange) -> bool:
    """Whether `back` has put a memfd under just this range; a fork, or `unback`, ends that."""
    call = native.function("sn_arm_range", _INT, _INT, _PTR, _PTR)
    base, nbytes = _U64(), _U64()
    return any(
        call(index, ctypes.byref(base), ctypes.byref(nbytes)) == 0
        and (base.value, nbytes.value) == (owned.start, owned.nbytes)
        for index in range(MAX_RANGES)
    )


def _require_memfd() -> None:
    """Raises CapabilityError where the kernel, or a container's filter, gives no memfd."""
    try:
        os.close(os.memfd_create("sentinel-probe"))
    except OSError as error:
        raise CapabilityError(
            "backing memory by a memfd",
            error.strerror or str(error),
            "in a container: allow the system call memfd_create; or use --tracker ops",
        ) from error


def unback(guarded: bool) -> None:
    """Puts private memory under all backed ranges again, as they were backed; nothing to do if there are none."""
    native.check("sn_arm_unback", _replacing("sn_arm_unback", guarded)())


def keep_small(addresses: NDArray[np.uint64]) -> None:
    """After `unback`, the chunks of 2 MiB with these addresses (n,) have small pages."""
    native.function("sn_exclusive_small", None, _U64, _PTR)(len(addresses), addresses.ctypes.data)


def touch_granules(tensor_bytes: int) -> None:
    """In the next watch, tensors of at least so many bytes are told in granules of a huge page; 0: none is."""
    native.check("sn_touch_granules", native.function("sn_touch_granules", _INT, _U64)(tensor_bytes))


def touch_start(kind: int, table: int | None, n_pages: int) -> int:
    """Begins to watch what is backed; 0 or -errno. `table`: address of its cells, two bytes a page."""
    return int(native.function("sn_touch_start", _INT, _INT, _PTR, _U64)(kind, table, n_pages))


def touch_mark(layer: int) -> bool:
    """Touches until the next mark belong to `layer`. False if a fork has ended the watch."""
    result = native.function("sn_touch_mark", _INT, ctypes.c_int32)(layer)
    return result != -errno.ECANCELED and native.check("sn_touch_mark", result) == 0


def touch_stop() -> bool:
    """Ends watching; the runs stay readable. False, once, if a fork had ended it."""
    result = native.function("sn_touch_stop", _INT)()
    return result != -errno.ECANCELED and native.check("sn_touch_stop", result) == 0


def touch_runs() -> NDArray[Any]:
    """A copy of all runs of touched pages since `touch_start`, (n,) of PAGE_RUN_DTYPE."""
    call = native.function("sn_touch_runs", _U64, _U64, _U64, _PTR)
    runs = np.zeros(call(0, 0, None), PAGE_RUN_DTYPE)
    call(0, len(runs), runs.ctypes.data)
    return runs


class _TakenRuns:
    """Runs that the library has handed over: an array of them keeps this, and so the memory."""

    def __init__(self, holder: int, address: int, count: int) -> None:
        self._holder = holder
        self._drop = native.function("sn_touch_drop", None, _PTR)
        self.__array_interface__ = {
            "version": 3,
            "shape": (count,),
            "typestr": f"|V{PAGE_RUN_DTYPE.itemsize}",
            "descr": PAGE_RUN_DTYPE.descr,
            "data": (address, False),
        }

    def __del__(self) -> None:
        self._drop(self._holder)


def take_runs() -> NDArray[Any]:
    """As `touch_runs`, but taken over, without a copy: the library has none afterwards."""
    address, count = _U64(), _U64()
    take = native.function("sn_touch_take", _PTR, ctypes.POINTER(_U64), ctypes.POINTER(_U64))
    holder = take(ctypes.byref(address), ctypes.byref(count))
    if not holder or not count.value:  # without memory for the handover there is some for no array
        if holder:
            native.function("sn_touch_drop", None, _PTR)(holder)
        return touch_runs()
    return np.asarray(_TakenRuns(holder, address.value, count.value))


def touch_state() -> TouchState:
    """Granularity, and what was lost."""
    state = TouchState()
    native.function("sn_touch_quality", None, ctypes.POINTER(TouchState))(ctypes.byref(state))
    return state
