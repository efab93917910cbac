"""Runs a command that may lock no memory: `python no_locked_memory.py COMMAND...`; its exit code is this program's.

Root is past the limit by CAP_IPC_LOCK, and each user may lock half a MiB a processor for perf's rings beside it. So the
right is given up, CAP_BPF and CAP_SYS_ADMIN too, or the tracker that needs no rings would be taken; and what the user
may lock is in use here, as a profiler of the whole machine has it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import struct
import subprocess
import sys
from pathlib import Path

_PR_CAPBSET_DROP = 24
_IPC_LOCK, _SYS_ADMIN, _BPF = 14, 21, 39
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _DUMMY = 1, 9  # an event that counts nothing
_RING_BYTES = 64 << 10
_CANNOT = 77
_libc = ctypes.CDLL(None, use_errno=True)


def give_up(*capabilities: int) -> None:
    """Not in any set, and not to come back with a program that root runs."""
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable; then the same of 32 and above
    _must(_libc.capget(version_3, sets))
    for each in capabilities:
        _must(_libc.prctl(_PR_CAPBSET_DROP, each, 0, 0, 0))
        for at in range(3):
            sets[3 * (each // 32) + at] &= ~(1 << each % 32)
    _must(_libc.capset(version_3, sets))


def lock_all_that_may_be() -> list[mmap.mmap]:
    """Rings of perf, ever smaller, until the kernel refuses one of a single page."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    attributes = ctypes.create_string_buffer(struct.pack("=IIQ", _SOFTWARE, 64, _DUMMY).ljust(64, b"\0"))
    held: list[mmap.mmap] = []
    nbytes = _RING_BYTES
    while nbytes:
        event = _libc.syscall(_PERF_EVENT_OPEN[platform.machine()], attributes, 0, -1, -1, 0)
        _must(min(event, 0))
        try:
            held.append(mmap.mmap(event, mmap.PAGESIZE + nbytes))
        except PermissionError:
            nbytes = nbytes // 2 if nbytes > mmap.PAGESIZE else 0
        finally:
            os.close(event)  # the mapping keeps it
    return held


def _must(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])


def main() -> None:
    """See the module's docstring. Exits with 77 where rights cannot be given up, or rings have no limit."""
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 0:
        sys.exit(_CANNOT)
    try:
        give_up(_IPC_LOCK, _SYS_ADMIN, _BPF)
        held = lock_all_that_may_be()
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(_CANNOT)
    done = subprocess.run(sys.argv[1:], check=False, timeout=600)
    for ring in held:
        ring.close()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
