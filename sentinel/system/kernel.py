"""System calls that Python has no function for, by name, on the machines whose numbers are known."""

from __future__ import annotations

import ctypes
import os
import platform

from sentinel.core.errors import CapabilityError, NativeError

_NUMBERS = {
    "x86_64": {
        "mbind": 237,
        "set_mempolicy": 238,
        "get_mempolicy": 239,
        "move_pages": 279,
        "perf_event_open": 298,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "mbind": 235,
        "get_mempolicy": 236,
        "set_mempolicy": 237,
        "move_pages": 239,
        "perf_event_open": 241,
        "bpf": 280,
        "userfaultfd": 282,
    },
}

_libc = ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: object) -> int:
    """The result of system call `name`; ints are passed as longs, the rest as ctypes does.

    Raises NativeError with its errno, CapabilityError on a machine whose call numbers are not known here.
    """
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None or os.uname().sysname != "Linux":
        raise CapabilityError(
            name, f"its number is not known on {platform.machine()}", "Sentinel knows x86_64 and aarch64 Linux"
        )
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    _libc.syscall.restype = ctypes.c_long
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise NativeError(name, ctypes.get_errno())
    return result
