"""bpf(2): maps, programs and raw tracepoints, without a library."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import weakref
from pathlib import Path

from sentinel.core.errors import NativeError

ARRAY, PERCPU_ARRAY = 2, 6
MMAPABLE = 1 << 10

_NUMBER = {"x86_64": 321}.get(platform.machine(), 280)
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD, _INFO_BY_FD, _RAW_TRACEPOINT_OPEN = 0, 1, 5, 15, 17
_RAW_TRACEPOINT = 17  # the type of program
_LOG_BYTES = 1 << 18
_INFO_BYTES, _MISSES_AT = 232, 208  # struct bpf_prog_info up to recursion_misses and what came with it, Linux 5.12

_libc = ctypes.CDLL(None, use_errno=True)
_held: weakref.WeakSet[Descriptors] = weakref.WeakSet()


class Descriptors:
    """Descriptors of one owner, all closed by `close`, the last first: what is attached goes before what it needs.

    A forked child closes its copies at once: a worker that lives on would keep the programs attached after its parent
    has stopped.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        _held.add(self)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def keep(self, descriptor: int) -> int:
        """Takes a descriptor into care, and returns it."""
        self._numbers.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Closes all, once."""
        numbers, self._numbers = self._numbers, []
        for number in reversed(numbers):
            os.close(number)


def _let_go() -> None:
    for held in _held:
        held.close()


os.register_at_fork(after_in_child=_let_go)


def _call(command: int, attributes: bytes, what: str) -> int:
    padded = ctypes.create_string_buffer(attributes, 128)
    result = int(_libc.syscall(_NUMBER, command, padded, ctypes.c_uint(128)))
    if result < 0:
        raise NativeError(f"bpf({what})", ctypes.get_errno())
    return result


def create_map(name: str, kind: int, value_bytes: int, entries: int, flags: int = 0) -> int:
    """Descriptor of a new array map with keys of four bytes. NativeError if it is refused."""
    attributes = struct.pack("<7I16s", kind, 4, value_bytes, entries, flags, 0, 0, name.encode()[:15])
    return _call(_MAP_CREATE, attributes, f"map {name}, {entries} entries")


def look_up_per_cpu(map_fd: int, value_bytes: int) -> list[bytes]:
    """Each processor's value of entry 0 of a per-cpu array."""
    stride = -(-value_bytes // 8) * 8
    cpus = _possible_cpus()
    key, values = ctypes.c_uint(0), ctypes.create_string_buffer(stride * cpus)
    _call(_MAP_LOOKUP, struct.pack("<IIQQQ", map_fd, 0, ctypes.addressof(key), ctypes.addressof(values), 0), "lookup")
    return [values.raw[i * stride : i * stride + value_bytes] for i in range(cpus)]


def load_program(code: bytes, license_text: str) -> int:
    """Descriptor of a raw-tracepoint program. NativeError, with the verifier's last words if it objects."""
    instructions = ctypes.create_string_buffer(code, len(code))
    text = ctypes.create_string_buffer(license_text.encode())
    plain = (_RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(text))
    what = "program load"
    try:
        return _call(_PROG_LOAD, struct.pack("<IIQQIIQ", *plain, 0, 0, 0), what)
    except NativeError as error:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        try:
            return _call(_PROG_LOAD, struct.pack("<IIQQIIQ", *plain, 1, _LOG_BYTES, ctypes.addressof(log)), what)
        except NativeError:
            said = log.value.decode(errors="replace").strip().splitlines()
            raise NativeError(error.call, error.errno, " / ".join(said[-3:])) from error


def missed_runs(program_fd: int) -> int:
    """How often the kernel left the program out, for it was running on that processor already; 0 before Linux 5.12,
    which does not tell."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _call(_INFO_BY_FD, struct.pack("<IIQ", program_fd, len(info), ctypes.addressof(info)), "program info")
    return int(struct.unpack_from("<Q", info, _MISSES_AT)[0])


def attach_raw_tracepoint(name: str, program_fd: int) -> int:
    """Descriptor that holds the program at tracepoint `name` until it is closed. NativeError if there is none."""
    text = ctypes.create_string_buffer(name.encode())
    return _call(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(text), program_fd), f"raw tracepoint {name}")


def _possible_cpus() -> int:
    try:
        ranges = Path("/sys/devices/system/cpu/possible").read_text().strip().split(",")
        return int(ranges[-1].split("-")[-1]) + 1
    except OSError:
        return os.sysconf("SC_NPROCESSORS_CONF")
