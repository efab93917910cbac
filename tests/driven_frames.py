"""Frames that a program drives itself: it says which granules leave and arrive, as Sentinel leaves to the library."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from sentinel.core.errors import NativeError
from sentinel.core.units import format_bytes
from sentinel.system import native
from sentinel.tiers.frames import Counters, Frames, State

_U64, _I64, _U32, _I32, _PTR = ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_int32, ctypes.c_void_p
_SLICE_NS = 100_000_000  # how long a wait keeps Python from handling signals


class Turned(ctypes.Structure):
    """What became of a transfer. `moved`: granules that left, or arrived. `stayed`: that did not. `errno`: of what
    failed first; EAGAIN: written to meanwhile; ECANCELED. `start_ns`, `stop_ns`: of the transfer, CLOCK_MONOTONIC."""

    _fields_ = (
        ("moved", _U64),
        ("stayed", _U64),
        ("start_ns", _U64),
        ("stop_ns", _U64),
        ("errno", _I32),
        ("reserved", _U32),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "sn_frames_states": (_I32, _PTR, _U32, _U32, _PTR),
    "sn_frames_attach": (_I32, _PTR, _U32, _U32),
    "sn_frames_need": (_I32, _PTR, _U64, _U64, _I32),
    "sn_frames_resize": (_I32, _PTR, _U32),
    "sn_frames_leave": (_I64, _PTR, _U32, _U32),
    "sn_frames_arrive": (_I64, _PTR, _U32, _U32, _I32),
    "sn_frames_cancel": (_I32, _PTR, _U64),
    "sn_frames_collect": (_I32, _PTR, _U64, _U64, _PTR),
    "sn_frames_count": (_I32, _PTR, _PTR),
}


class DrivenFrames(Frames):
    """Every call raises NativeError (ECHILD) in a forked child."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._call |= {name: native.function(name, *signature) for name, signature in _SIGNATURES.items()}

    def counters(self) -> Counters:
        """What has happened, and where granules are."""
        told = Counters()
        self._check("sn_frames_count", ctypes.byref(told))
        return told

    def states(self) -> list[State]:
        """Of each granule."""
        count = self.facts().granules
        told = (ctypes.c_uint8 * count)()
        self._check("sn_frames_states", 0, count, told)
        return [State(number) for number in told]

    def attach(self, first: int, count: int) -> None:
        """Granules [first, first + count) get frames, with any bytes; others leave for them. Raises TierError if there
        are not enough frames or regions."""
        self._move("sn_frames_attach", f"giving frames to {count} granules", first, count)

    def need(self, address: int, nbytes: int, *, writes: bool = False) -> None:
        """All of [address, address + nbytes) is resident afterwards, and may be written to if `writes`. Those needed
        longest ago leave for it. Raises TierError if it does not fit, or if the disk fails."""
        self._move("sn_frames_need", f"bringing {format_bytes(nbytes)} into memory", address, nbytes, int(writes))

    def resize(self, count: int) -> None:
        """So many frames have memory afterwards, at most as many as were asked for at first: what exceeds them leaves,
        and memory goes back to the kernel. Raises TierError for more, or if the disk or the kernel refuses."""
        self._move("sn_frames_resize", f"making {count} frames of those that have memory", count)

    def leave(self, first: int, count: int) -> int:
        """Begin to write out those that are resident; the id of the transfer."""
        return self._check("sn_frames_leave", first, count)

    def arrive(self, first: int, count: int, *, writes: bool = False) -> int:
        """Begin to read in those that are away; the id of the transfer. Raises NativeError (ENOSPC) if there are not as
        many free frames."""
        return self._check("sn_frames_arrive", first, count, int(writes))

    def cancel(self, transfer: int) -> None:
        """What no thread has begun stays where it is; the transfer is still to be collected."""
        self._check("sn_frames_cancel", transfer)

    def collect(self, transfer: int) -> Turned:
        """Wait for a transfer, and turn over what it moved."""
        told = Turned()
        while True:
            result = self._call["sn_frames_collect"](self._open(), transfer, _SLICE_NS, ctypes.byref(told))
            if result != -errno.ETIMEDOUT:
                native.check("sn_frames_collect", result)
                return told

    def __enter__(self) -> DrivenFrames:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _move(self, name: str, what: str, *arguments: int) -> None:
        result = self._call[name](self._open(), *arguments)
        if result in (-errno.ECHILD, -errno.EINVAL, -errno.EEXIST):
            raise NativeError(name, -result)
        if result:
            raise self._error(what, -result)
