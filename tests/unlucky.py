"""System calls of the native library that go as a test orders: slowly, in parts, not at all, with a signal, or held."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from pathlib import Path

from sentinel.system import native
from sentinel.system.compiler import Library, compile_into

_SOURCE = Path(__file__).with_name("unlucky_calls.cpp")


class Way(IntEnum):
    """SLOW: `amount` ns for each KiB. FITFUL: EINTR, EAGAIN, and parts. FAIL: `amount` is the errno. SIGNAL: once, to
    this process, `amount` is its number. HOLD: until another order, or a fork."""

    AS_EVER, SLOW, FITFUL, FAIL, SIGNAL, HOLD = range(6)


class Calls(IntFlag):
    """Transfers from the file, to it, what takes a name away, what makes a file in a folder, and memory of frames."""

    READS, WRITES, UNLINKS, FILES, MEMORY = 1, 2, 4, 8, 16


class Unlucky:
    """The library's calls go through `path` until `end`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name in ("seen", "held", "held_at_fork"):
            getattr(self._library, f"unlucky_{name}").restype = ctypes.c_uint64
        self._replace = native.function("sn_system_replace", None, ctypes.c_void_p)
        self._replace(ctypes.cast(self._library.unlucky_call, ctypes.c_void_p))

    def order(self, way: Way, calls: Calls = Calls.READS | Calls.WRITES, amount: int = 0, after: int = 0) -> None:
        """Each of `calls` goes that way, but for the next `after`."""
        self._library.unlucky_order(int(way), int(calls), ctypes.c_int64(amount), ctypes.c_uint64(after))

    def refuse_files_without_a_name(self) -> None:
        """As a file system without O_TMPFILE does."""
        self._library.unlucky_names(1)

    def let_go_at_fork(self) -> None:
        """Of what is held, as a fork begins. After the session has begun."""
        assert self._library.unlucky_let_go_at_fork() == 0

    def told(self, name: str) -> int:
        """`seen`: calls since the last order. `held`: now; `held_at_fork`: as the last fork began."""
        return int(getattr(self._library, f"unlucky_{name}")())

    def end(self) -> None:
        self.order(Way.AS_EVER)
        self._library.unlucky_names(0)
        self._replace(None)


def compiled(folder: Path) -> Path:
    """What `Unlucky` takes."""
    flags = ("-O1", "-fPIC", "-std=c++17", "-Wall", "-Wextra", "-Werror")
    return compile_into(Library("unlucky_calls", (_SOURCE,), (), flags), folder)
