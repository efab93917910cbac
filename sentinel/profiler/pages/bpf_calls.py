"""bpf(2): maps, programs and raw tracepoints, without a library."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from sentinel.core.errors import NativeError
from sentinel.runtime import RUNTIME
from sentinel.system.sysfs import numbers, text

ARRAY, PERCPU_ARRAY = 2, 6
MMAPABLE = 1 << 10

_NUMBER = {"x86_64": 321}.get(platform.machine(), 280)
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD, _INFO_BY_FD, _RAW_TRACEPOINT_OPEN = 0, 1, 5, 15, 17
_RAW_TRACEPOINT = 17  # the type of program
_LOG_BYTES = 1 << 18
_MOST_CPUS = 8192  # that a kernel is built for; it writes a value for each possible one, whatever the buffer's size
_INFO_BYTES, _MISSES_AT = 232, 208  # struct bpf_prog_info up to recursion_misses and what came with it, Linux 5.12

_libc = ctypes.CDLL(None, use_errno=True)


class Descriptors:
    """Descriptors of one owner, all closed by `close`, the last first: what is attached goes before what it needs.

    A forked child closes its copies at once: a worker that lives on would keep the programs attached after its parent
    has stopped.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        RUNTIME.not_inherited.add(self)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def create_map(self, name: str, kind: int, value_bytes: int, entries: int, flags: int = 0) -> int:
        """Descriptor of a new array map with keys of four bytes. NativeError if it is refused."""
        attributes = struct.pack("<7I16s", kind, 4, value_bytes, entries, flags, 0, 0, name.encode()[:15])
        return _call(_MAP_CREATE, attributes, f"map {name}, {entries} entries", self._numbers)

    def attach_raw_tracepoint(self, name: str, program_fd: int) -> int:
        """Descriptor that holds the program at tracepoint `name` until it is closed. NativeError if there is none."""
        text = ctypes.create_string_buffer(name.encode())
        attributes = struct.pack("<QI", ctypes.addressof(text), program_fd)
        return _call(_RAW_TRACEPOINT_OPEN, attributes, f"raw tracepoint {name}", self._numbers)

    def attach(self, name: str, code: bytes) -> int:
        """Descriptor of a program of Sentinel's that is at tracepoint `name` until it is closed. NativeError."""
        loaded = self.load_program(code, "Dual BSD/GPL")
        self.attach_raw_tracepoint(name, loaded)
        return loaded

    def load_program(self, code: bytes, license_text: str) -> int:
        """Descriptor of a raw-tracepoint program. NativeError, with the verifier's last words if it objects."""
        instructions = ctypes.create_string_buffer(code, len(code))
        text = ctypes.create_string_buffer(license_text.encode())
        plain = (_RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(text))
        try:
            return self._load(*plain, 0, 0, 0)
        except NativeError as error:
            log = ctypes.create_string_buffer(_LOG_BYTES)
            try:
                return self._load(*plain, 1, _LOG_BYTES, ctypes.addressof(log))
            except NativeError:
                said = log.value.decode(errors="replace").strip().splitlines()
                raise NativeError(error.call, error.errno, " / ".join(said[-3:])) from error

    def _load(self, *attributes: int) -> int:
        return _call(_PROG_LOAD, struct.pack("<IIQQIIQ", *attributes), "program load", self._numbers)

    def close(self) -> None:
        """Closes all, once."""
        while self._numbers:
            _run_in_c(map(_libc.close, map(self._numbers.pop, (-1,))))

    def forked(self) -> None:
        """See NotInherited."""
        self.close()


# Python handles signals between its own instructions: what one call of C does, no interrupt cuts in two. So no
# descriptor is lost between the kernel and the list, and none is closed twice.
_run_in_c: Callable[[Iterable[object]], None] = collections.deque[object](maxlen=0).extend


def _call(command: int, attributes: bytes, what: str, kept: list[int]) -> int:
    """What bpf(2) returns; that is in `kept` too, unless it is refused: then NativeError."""
    padded = ctypes.create_string_buffer(attributes, 128)
    kept.extend(map(_libc.syscall, (_NUMBER,), (command,), (padded,), (ctypes.c_uint(128),)))
    result = kept[-1]
    if result < 0:
        code = ctypes.get_errno()
        kept.pop()
        raise NativeError(f"bpf({what})", code)
    return result


def own_pid() -> tuple[int, int, int]:
    """(device, inode, number): this process as its own namespace numbers it, and that namespace."""
    space = os.stat("/proc/self/ns/pid")
    device = os.major(space.st_dev) << 20 | os.minor(space.st_dev)  # as the kernel encodes it inside
    return device, space.st_ino, os.getpid()


def shared(map_fd: int, nbytes: int) -> mmap.mmap:
    """The map's values, of so many bytes, in this process."""
    whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return mmap.mmap(map_fd, whole, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def unmap(maps: list[mmap.mmap]) -> None:
    """Closes shared maps, once. One that a traceback still looks into goes with that."""
    for each in maps:
        with contextlib.suppress(BufferError):
            each.close()
    maps.clear()


def look_up_per_cpu(map_fd: int, value_bytes: int) -> list[bytes]:
    """Each processor's value of entry 0 of a per-cpu array."""
    stride = -(-value_bytes // 8) * 8
    possible = numbers(text(Path("/sys/devices/system/cpu/possible")))
    cpus = max(possible) + 1 if possible else _MOST_CPUS
    key, values = ctypes.c_uint(0), ctypes.create_string_buffer(stride * cpus)
    attributes = struct.pack("<IIQQQ", map_fd, 0, ctypes.addressof(key), ctypes.addressof(values), 0)
    _call(_MAP_LOOKUP, attributes, "lookup", [])
    return [values.raw[i * stride : i * stride + value_bytes] for i in range(cpus)]


def missed_runs(program_fd: int) -> int:
    """How often the kernel left the program out, for it was running on that processor already; 0 before Linux 5.12,
    which does not tell."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _call(_INFO_BY_FD, struct.pack("<IIQ", program_fd, len(info), ctypes.addressof(info)), "program info", [])
    return int(struct.unpack_from("<Q", info, _MISSES_AT)[0])
