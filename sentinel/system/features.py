"""Trials of what the kernel can do: each on a page of its own."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

from sentinel.core.errors import NativeError
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from sentinel.system import numa
from sentinel.system.numa import Page
from sentinel.system.probes import Missing

_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_SCAN = struct.Struct("=12Q")
_PRESENT = 1 << 3
_SOFT_DIRTY = 1 << 55

ADVICE = {
    "MADV_REMOVE": 9,  # free pages of a profiled step go back to the system
    "MADV_HUGEPAGE": 14,  # large pages under plans that move nothing
    "MADV_NOHUGEPAGE": 15,  # small pages where tensors are distinguished by page
}
"""What the arenas ask of madvise(), beside MADV_DONTNEED."""
LATER_ADVICE = {"MADV_POPULATE_WRITE": 23, "MADV_COLLAPSE": 25}
"""What they use where there is it."""
_POLICIES = {"MPOL_PREFERRED_MANY": 5, "MPOL_WEIGHTED_INTERLEAVE": 6}


def pagemap_scan() -> str:
    """The ioctl reports a touched page, and not the untouched one beside it."""
    memory = mmap.mmap(-1, 2 * PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[0] = 1
    anchor = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(anchor)
    found = (ctypes.c_uint64 * 6)()
    head = (_SCAN.size, 0, start, start + 2 * PAGE_BYTES, 0, ctypes.addressof(found), 2, 0, 0, _PRESENT, 0, _PRESENT)
    argument = bytearray(_SCAN.pack(*head))
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            count = fcntl.ioctl(file, _PAGEMAP_SCAN, argument)
    except OSError as error:
        raise Missing(f"the ioctl is refused: {error.strerror} (it came with Linux 6.7)") from error
    finally:
        del anchor
        memory.close()
    if count != 1 or tuple(found[:2]) != (start, start + PAGE_BYTES):
        raise Missing(f"of two pages one was touched; {count} ranges were reported")
    return "of two pages it reported the touched one"


def soft_dirty() -> str:
    """After clear_refs a page is clean until it is written."""

    def dirty(address: int) -> bool:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(address // PAGE_BYTES * 8)
            return bool(struct.unpack("=Q", file.read(8))[0] & _SOFT_DIRTY)

    with Page() as address:
        Path("/proc/self/clear_refs").write_text("4")
        before = dirty(address)
        ctypes.memset(address, 2, 1)
        if before or not dirty(address):
            raise Missing("a written page is not marked: this kernel was built without CONFIG_MEM_SOFT_DIRTY")
    return "a page was clean, then written, and marked"


def advice() -> str:
    """madvise() takes what the arenas ask for."""
    refused = [name for name, number in ADVICE.items() if _advised(number, shared=name == "MADV_REMOVE")]
    if refused:
        raise Missing(f"madvise() refuses {', '.join(refused)}")
    more = [name for name, number in LATER_ADVICE.items() if _advised(number, shared=False) in (0, errno.EAGAIN)]
    return f"madvise() takes {', '.join([*ADVICE, *more])}"


def weighted_interleave() -> str:
    """mbind() takes the policies that came later."""
    taken, refused = [], []
    for name, mode in _POLICIES.items():
        with Page() as address:
            try:
                numa.bind(address, PAGE_BYTES, 0, mode)
                taken.append(name)
            except NativeError as error:
                refused.append(f"{name}: {os.strerror(error.errno)}")
    if refused:
        raise Missing(", ".join(refused))
    return f"mbind() takes {', '.join(taken)}"


def _advised(number: int, *, shared: bool) -> int:
    """0, or the errno of madvise() for a touched page."""
    visibility = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    memory = mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, visibility | mmap.MAP_ANONYMOUS)  # with a whole huge page in it
    memory[0] = 1
    try:
        memory.madvise(number)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        memory.close()
    return 0
