"""Tracker `ebpf`: a program on the page-fault tracepoints writes down each touch, in the kernel."""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.profiler.pages import bpf_calls, native_touch
from sentinel.profiler.pages.armed_tracker import CHILDREN, DEVICES, PINNED, TWICE, Reader
from sentinel.profiler.pages.bpf_object import read_programs
from sentinel.profiler.pages.protocol import AddressRange
from sentinel.system import limits

OBJECT = Path(__file__).with_name("page_touches.bpf")

# ebpf/page_touches.h
_CONTROL = struct.Struct("<QQIIQII")
_RANGE = struct.Struct("<QQQ")
_TOTALS = struct.Struct("<5Q")
_CONTROL_BYTES = _CONTROL.size + native_touch.MAX_RANGES * _RANGE.size
_CELL_BYTES, _CELL_PAGES = 8, 4
_ENABLED_AT = 20

_OF_ROOM = 8
"""The kernel allocates the whole table at once, on the account of this process's memory cgroup, which it may fill with
an eighth of what it has left: a group that is full has a process ended."""

_WHAT = "counting page faults by eBPF"
_REMEDY = "run as root or with CAP_BPF and CAP_PERFMON, or use --tracker perf"


class EbpfReader(Reader):
    """Loads the prebuilt program, attaches it, and shares its tables."""

    def __init__(self) -> None:
        super().__init__("ebpf", native_touch.TABLE, _WHAT, _REMEDY, (TWICE, PINNED, DEVICES, CHILDREN))
        self._fds = bpf_calls.Descriptors()
        self._maps: list[mmap.mmap] = []
        self._totals = -1
        self._programs: list[int] = []

    def open(self, n_pages: int, layout: Sequence[tuple[AddressRange, int]]) -> int | None:
        """See Reader. Raises CapabilityError where the kernel refuses."""
        try:
            return self._open(n_pages, layout)
        except NativeError as error:
            remedy = _REMEDY if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS) else "use --tracker perf"
            raise CapabilityError(_WHAT, str(error), remedy) from error

    def close(self) -> int:
        """See Reader."""
        try:
            if not self._fds or self._totals < 0:
                return 0
            totals = bpf_calls.look_up_per_cpu(self._totals, _TOTALS.size)
            lost = sum(int(_TOTALS.unpack(value)[4]) for value in totals)
            return lost + sum(bpf_calls.missed_runs(program) for program in self._programs)
        finally:
            self._totals, self._programs = -1, []
            self._fds.close()
            bpf_calls.unmap(self._maps)

    def _share(self, map_fd: int, nbytes: int) -> int:
        """Address at which the map's values are, in this process."""
        shared = bpf_calls.shared(map_fd, nbytes)
        self._maps.append(shared)
        return ctypes.addressof(ctypes.c_char.from_buffer(shared))

    def _open(self, n_pages: int, layout: Sequence[tuple[AddressRange, int]]) -> int:
        cells = -(-n_pages // _CELL_PAGES)
        _require_room(cells * _CELL_BYTES)
        create = self._fds.create_map
        maps = {
            "control": create("control", bpf_calls.ARRAY, _CONTROL_BYTES, 1, bpf_calls.MMAPABLE),
            "seen": create("seen", bpf_calls.ARRAY, _CELL_BYTES, cells, bpf_calls.MMAPABLE),
            "totals": create("totals", bpf_calls.PERCPU_ARRAY, _TOTALS.size, 1),
        }
        self._share(maps["control"], _CONTROL_BYTES)
        table = self._share(maps["seen"], cells * _CELL_BYTES)
        self._maps[0][:_CONTROL_BYTES] = _control(n_pages, layout)
        for program in read_programs(OBJECT, "raw_tp/"):
            self._programs.append(self._fds.attach(program.section.removeprefix("raw_tp/"), program.linked(maps)))
        self._totals = maps["totals"]
        self._maps[0][_ENABLED_AT] = 1
        return table


def _require_room(table_bytes: int) -> None:
    room = limits.room_bytes()
    if room is not None and table_bytes > room // _OF_ROOM:
        raise CapabilityError(
            _WHAT,
            f"the memory cgroup has {format_bytes(room)} left, the table of pages takes {format_bytes(table_bytes)}",
            "give the container more memory, or use --tracker perf",
        )


def _control(n_pages: int, layout: Sequence[tuple[AddressRange, int]]) -> bytes:
    """`struct touch_control`: this process, and where the ranges are."""
    head = _CONTROL.pack(*bpf_calls.own_pid(), 0, n_pages, len(layout), 0)
    ranges = b"".join(
        _RANGE.pack(owned.start // PAGE_BYTES, owned.nbytes // PAGE_BYTES, first // _CELL_PAGES)
        for owned, first in layout
    )
    return (head + ranges).ljust(_CONTROL_BYTES, b"\0")
