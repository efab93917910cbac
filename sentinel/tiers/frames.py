"""Memory of a fixed amount that shows a larger range of addresses, the rest of it in a file
(kernel_profiler/src/frames.cpp). What a storage tier is made of: see file_tier."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from sentinel.core.errors import TierError, UsageError
from sentinel.core.units import HUGE_PAGE_BYTES, format_bytes
from sentinel.system import native
from sentinel.system.disks import memory_under

FRAME_BYTES = HUGE_PAGE_BYTES

_U64, _U32, _I32, _PTR = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32, ctypes.c_void_p
_BUFFERED = 1  # SN_FRAMES_BUFFERED
_READERS, _WRITERS = 2, 2  # threads

REMEDIES = {
    errno.EMEDIUMTYPE: "name a directory on a disk",
    errno.ENOENT: "name a directory that exists",
    errno.ENOTDIR: "name a directory",
    errno.EACCES: "name a directory that this user may write to",
    errno.EROFS: "name a directory on a file system that may be written to: this one is mounted read-only",
    errno.EPERM: "allow that system call: rules of the container (seccomp) or of the host forbid it",
    errno.ENOSYS: "allow that system call: the kernel lacks it, or rules of the container (seccomp) hide it",
    errno.ENOSPC: "name a directory on a disk with more room, or ask for less",
    errno.EDQUOT: "ask for less, or for a larger quota",
    errno.EIO: "see the kernel's log (dmesg), and name a directory on another disk",
    errno.EFBIG: "allow larger files (ulimit -f), or ask for less",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOMEM: "allow more addresses (ulimit -v) or memory (free -m, the container's limit), or ask for less",
    errno.E2BIG: "allow more mappings (sysctl vm.max_map_count), or ask for fewer granules",
    errno.EAGAIN: "allow more threads (ulimit -u)",
}
"""What to do about an errno of a file."""


class State(IntEnum):
    """Of a granule. ABSENT: addresses only. DIRTY: resident, the file does not hold it. CLEAN: resident, the file holds
    it too. UNSAVED: resident after a write-out that failed. LEAVING: resident, being written out. AWAY: in the file.
    ARRIVING: in the file, being read into a frame."""

    ABSENT, DIRTY, CLEAN, UNSAVED, LEAVING, AWAY, ARRIVING = range(7)


class Facts(ctypes.Structure):
    """What was made. `base`: address of granule 0. `pool_bytes`: memory that the kernel gave to frames. `regions`: of
    the file. `huge_frames`: of one huge page each. `direct`: transfers pass the page cache by. `unnamed`: the file
    never had a name. `promised`: the file system has set its room aside."""

    _fields_ = (
        ("base", _U64),
        ("pool_bytes", _U64),
        ("frames", _U32),
        ("granules", _U32),
        ("regions", _U32),
        ("huge_frames", _U32),
        ("direct", _U32),
        ("unnamed", _U32),
        ("promised", _U32),
        ("reserved", _U32),
    )


class Counters(ctypes.Structure):
    """`in_state`: granules in each State. `carried_pages`: written to while on their way, found and kept. `given_up`:
    write-outs that ended with the granule resident, since it was written to meanwhile. `waited`: stores that waited
    for a granule to be turned over. `dropped`: granules that left unwritten, since the file held them. `fork_bytes`:
    written for forks. `generations`: forks whose children may still read the file. `own_pages`: of 4 KiB beside the
    frames, made by stores into what is clean or away, when they were last looked for; `most_own_pages`: that were ever
    found. `unread_bytes`: were away, and came without being read, since they were to be zero. `kept`: granules that
    stay resident, since stores that nobody announced came again and again. `failed_reads`, `failed_writes`: pieces of
    transfers that the disk or a limit refused; `read_failure`, `write_failure`: errno of the last of each, or 0.
    `pinned`: granules that stay as they are, since a device has pages of theirs. `file_full`: times that a granule was
    to have a region of the file, and none was free."""

    _fields_ = (
        ("free_frames", _U64),
        ("free_regions", _U64),
        ("in_state", _U64 * len(State)),
        ("read_bytes", _U64),
        ("written_bytes", _U64),
        ("carried_pages", _U64),
        ("given_up", _U64),
        ("waited", _U64),
        ("dropped", _U64),
        ("fork_bytes", _U64),
        ("generations", _U64),
        ("own_pages", _U64),
        ("most_own_pages", _U64),
        ("unread_bytes", _U64),
        ("kept", _U64),
        ("failed_reads", _U64),
        ("failed_writes", _U64),
        ("read_failure", _U64),
        ("write_failure", _U64),
        ("pinned", _U64),
        ("file_full", _U64),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("directory", ctypes.c_char_p),
        ("frames", _U32),
        ("granules", _U32),
        ("regions", _U32),
        ("readers", _U32),
        ("writers", _U32),
        ("flags", _U32),
        ("filled", _U32),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "sn_frames_create": (_I32, _PTR, ctypes.POINTER(_PTR), ctypes.POINTER(ctypes.c_char_p)),
    "sn_frames_destroy": (_I32, _PTR),
    "sn_frames_facts_of": (_I32, _PTR, _PTR),
    "sn_frames_release": (_I32, _PTR, _U32, _U32),
}


class Frames:
    """Granules of FRAME_BYTES at fixed addresses, of which as many are in memory as there are frames.

    Raises TierError where the host refuses, naming what was tried. In a forked child every call raises NativeError
    (ECHILD); what the granules held at the fork stays readable there.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        frames: int,
        granules: int,
        regions: int,
        direct: bool = True,
        filled: int | None = None,
    ) -> None:
        """`directory`: where the file is made. `frames`, `granules`, `regions`: memory, addresses and file, in units of
        FRAME_BYTES. A region is taken by each granule that is not absent; the file grows by what forked children still
        read. `direct`: where the host allows it. `filled`: frames that have memory at first; None: all."""
        self._call = {name: native.function(name, *signature) for name, signature in _SIGNATURES.items()}
        self._handle = _PTR()  # the library writes it: an interrupt loses none
        self._directory = os.fspath(directory)
        for name, count in (("frames", frames), ("granules", granules), ("regions", regions)):
            if not 0 < count < 1 << 32:  # ctypes would cut it
                raise UsageError(f"{name}={count}", f"give a number of pieces of {format_bytes(FRAME_BYTES)}")
        if memory := memory_under(self._directory):
            raise self._error(memory, errno.EMEDIUMTYPE)
        step = ctypes.c_char_p()
        asked = _Request(
            os.fsencode(self._directory),
            frames,
            granules,
            regions,
            _READERS,
            _WRITERS,
            0 if direct else _BUFFERED,
            filled or 0,
        )
        self._granules = granules
        try:
            result = self._call["sn_frames_create"](ctypes.byref(asked), ctypes.byref(self._handle), ctypes.byref(step))
            if result:
                raise self._error((step.value or b"").decode(), -result)
            self._facts = self._read_facts()
        except BaseException:
            self.close()
            raise

    def facts(self) -> Facts:
        """What was made."""
        return self._facts

    def hand_over(self, to: Callable[[Any], int]) -> int:
        """What `to` gives for a pointer to where the library's own object is. If it takes that away, these are closed:
        wherever an interrupt comes, one of both has it."""
        self._open()
        return to(ctypes.byref(self._handle))

    def close(self) -> None:
        """Release all granules, the memory and the file. In a forked child, nothing."""
        if not self._handle:
            return
        if self._call["sn_frames_release"](self._handle, 0, 0) != -errno.ECHILD:
            self._check("sn_frames_release", 0, self._granules)
            self._check("sn_frames_destroy")
        self._handle = _PTR()

    def _read_facts(self) -> Facts:
        told = Facts()
        self._check("sn_frames_facts_of", ctypes.byref(told))
        return told

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise UsageError("these frames are closed", "make new ones")
        return self._handle

    def _check(self, name: str, *arguments: Any) -> int:
        return native.check(name, self._call[name](self._open(), *arguments))

    def _error(self, what: str, code: int) -> TierError:
        remedy = f"; {REMEDIES[code]}" if code in REMEDIES else ""
        return TierError(f"{what}{remedy}", tier=f"file in {self._directory}", errno=code)
