"""Loads the native library (kernel_profiler/include/sentinel.h), once a process; each part of Sentinel declares the
functions and structures that it calls.

The library is `sentinel/_native*.so`, built with the package. A source checkout without one compiles
kernel_profiler/ once into the user's cache.
"""

from __future__ import annotations

import ctypes
import errno
import functools
from pathlib import Path
from typing import Any

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.system.compiler import Library, compile_once

ABI_VERSION = 1
WHY = (
    "small",
    "foreign_thread",
    "pass_through",
    "no_slot",
    "size_differs",
    "busy",
    "unsynchronised",
    "no_memory",
)
"""Reasons for an allocation from malloc, in the order of SN_WHY_*."""

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent / "kernel_profiler"
_COMPILE_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread")
_LINK_FLAGS = ("-pthread", "-Wl,-z,nodelete")

_U64, _I64, _I32, _INT, _PTR = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_int, ctypes.c_void_p

LOCKED = (
    "the process locks all memory that it maps (mlockall with MCL_FUTURE): arenas would be filled, and no page go back",
    "leave MCL_FUTURE out, or call mlockall when Sentinel has stopped",
)
"""Why, and what to do, where the library returns -ENOLCK."""


class Counters(ctypes.Structure):
    """`sn_counters`."""

    _fields_ = (
        ("served", _U64),
        ("served_bytes", _U64),
        ("fallback", _U64 * len(WHY)),
        ("fallback_bytes", _U64 * len(WHY)),
        ("live_bytes", _I64),
        ("peak_live_bytes", _I64),
        ("unmanaged_live_bytes", _I64),
        ("unmanaged_peak_bytes", _I64),
        ("foreign_frees", _U64),
    )


class Range(ctypes.Structure):
    """`sn_range`: an arena's base address and byte counts."""

    _fields_ = (("base", _U64), ("used_bytes", _U64), ("reserved_bytes", _U64), ("free_bytes", _U64))


# name -> (result, arguments), for what this library's memory part offers; `function` binds the others' parts.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sn_abi_version": (_INT, ()),
    "sn_system_fail": (_U64, (ctypes.c_long, _U64, _INT)),
    "sn_next_seq": (_U64, ()),
    "sn_now_ns": (_U64, ()),
    "sn_tick": (_INT, (_I32,)),
    "sn_log_count": (_U64, ()),
    "sn_log_lost": (_U64, ()),
    "sn_log_copy": (_U64, (_U64, _U64, _PTR)),
    "sn_memory_create": (_INT, (_U64, _U64)),
    "sn_memory_own": (_INT, ()),
    "sn_thread_number": (_U64, ()),
    "sn_memory_mode": (_INT, ()),
    "sn_memory_counters": (None, (ctypes.POINTER(Counters),)),
    "sn_memory_reset_peaks": (None, ()),
    "sn_memory_contains": (_INT, (_U64,)),
    "sn_allocate": (_PTR, (_U64,)),
    "sn_free": (None, (_PTR,)),
    "sn_pass_through": (_INT, ()),
    "sn_record": (_INT, ()),
    "sn_place": (_INT, (_U64, _PTR, _PTR, _PTR, _PTR, _U64, _INT)),
    "sn_place_also": (_INT, (_U64, _PTR, _PTR, _PTR, _PTR, _U64)),
    "sn_use_table": (_INT, (_I32,)),
    "sn_table_in_use": (_PTR, ()),
    "sn_placement_fitted": (_U64, ()),
    "sn_placement_unlike": (_U64, ()),
    "sn_exclusive_range": (_INT, (ctypes.POINTER(Range),)),
    "sn_placement_range": (_INT, (ctypes.POINTER(Range),)),
    "sn_placement_discard": (_I64, (_U64, _U64)),
    "sn_placement_huge": (_INT, (_U64, _PTR, _PTR)),
}


def include_folder() -> Path:
    """The folder of sentinel.h: in the installed package, else in the source checkout."""
    installed = _PACKAGE / "_include"
    return installed if installed.is_dir() else _CHECKOUT / "include"


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once, its symbols visible to the torch shim. Calls through it let go of the GIL.

    Raises CapabilityError where it is missing and can't be compiled.
    """
    loaded = ctypes.CDLL(str(path()), mode=ctypes.RTLD_GLOBAL)
    _declare(loaded)
    found = loaded.sn_abi_version()
    if found != ABI_VERSION:
        why = f"it has ABI version {found}, this package needs {ABI_VERSION}"
        raise CapabilityError(f"loading {path()}", why, "install sentinel again")
    return loaded


@functools.cache
def quick() -> ctypes.PyDLL:
    """The library for calls of well under a microsecond: the GIL is kept, which is cheaper and never waits."""
    library()
    loaded = ctypes.PyDLL(str(path()))
    _declare(loaded)
    return loaded


def function(name: str, result: Any, *arguments: Any) -> Any:
    """`name` of the library with its ctypes signature, for the parts of the library that others bind."""
    bound = library()[name]  # a fresh object, unlike attribute access: nobody else's signature changes
    bound.restype, bound.argtypes = result, arguments
    return bound


def check(call: str, result: int, remedy: str = "") -> int:
    """`result` if it is not negative, else NativeError for the errno that it carries.

    `remedy`: what to do, but for errnos that say it themselves.
    """
    if result < 0:
        raise NativeError(call, -result, _REMEDIES.get(-result, remedy))
    return result


_REMEDIES = {
    errno.ENOMEM: "allow more addresses (ulimit -v) or memory (free -m, the container's limit)",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.EFBIG: "allow larger files (ulimit -f): memory that is watched is one; or use --tracker ops",
}


@functools.cache
def path() -> Path:
    """The shared library's file; compiled first if this is a source checkout without a current one."""
    sources = tuple(sorted(_CHECKOUT.glob("src/*.cpp")))
    headers = tuple(sorted(_CHECKOUT.glob("include/*.h"))) + tuple(sorted(_CHECKOUT.glob("src/*.h")))
    built = sorted(_PACKAGE.glob("_native*.so"))
    changed = max((file.stat().st_mtime for file in sources + headers), default=0.0)
    if built and built[0].stat().st_mtime >= changed:
        return built[0]
    if not sources:
        raise CapabilityError(
            "loading the native library",
            f"no _native*.so in {_PACKAGE}",
            "install g++ (Debian: apt-get install g++) and install sentinel again",
        )
    includes = (f"-I{_CHECKOUT / 'include'}", f"-I{_CHECKOUT / 'src'}")
    made = Library("sentinel_native", sources, headers, _COMPILE_FLAGS, _LINK_FLAGS, compile_paths=includes)
    return compile_once(made)


def _declare(loaded: ctypes.CDLL) -> None:
    for name, (result, arguments) in _SIGNATURES.items():
        bound = getattr(loaded, name)
        bound.restype, bound.argtypes = result, arguments
