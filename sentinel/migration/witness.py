"""An independent witness of page migrations: an eBPF program that writes down what the kernel does, whoever asked.

It shares nothing with the mover, so that the engine's claims can be held against it. It needs root, or CAP_BPF and
CAP_PERFMON, and x86-64; `start` moves one page of its own there and back and refuses unless exactly that was seen.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform
import re
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.record_log import RecordLog
from sentinel.migration.sightings import MOVE_DTYPE, REASONS, RECORD_DTYPE, Frames, Sightings, join
from sentinel.profiler.pages import bpf_calls
from sentinel.profiler.pages.bpf_object import Program, read_programs
from sentinel.system import numa
from sentinel.system.sysfs import numbers, text

OBJECT = Path(__file__).with_name("migrations.bpf")

# ebpf/migrations.h
_CONTROL = struct.Struct("<QQIIQQQ")  # the last two are RecordLog's
_RANGES_AT, _N_RANGES_AT, _ENTRIES_AT = _CONTROL.size, 20, 24
_RANGE = struct.Struct("<QQ")
_MAX_RANGES = 16
_CONTROL_BYTES = _CONTROL.size + _MAX_RANGES * _RANGE.size
_TOTALS = struct.Struct("<16Q16QQ")

_WHAT = "watching page migrations by eBPF"
_RIGHTS = "run as root or with CAP_BPF and CAP_PERFMON"
_PROOFS = 5
_NODES = Path("/sys/devices/system/node")


class MigrationWitness:
    """Watches up to 15 ranges of this process between `start` and `stop`.

    `log_entries`, a power of two: records kept between two reads, two for each page that moves and one for each
    call of the kernel's migrate_pages() on the machine. What finds no room is counted as lost. In a forked child it
    has ended.
    """

    def __init__(self, log_entries: int = 1 << 18) -> None:
        if log_entries < 2 or log_entries & (log_entries - 1):
            raise UsageError(f"a log of {log_entries} entries", "give a power of two")
        self._log_entries = log_entries
        self._fds = bpf_calls.Descriptors()
        self._maps: list[mmap.mmap] = []
        self._programs: list[int] = []
        self._log: RecordLog | None = None
        self._totals = -1
        self._frames = Frames(1, np.empty(0, np.int32))
        self._pending = np.empty(0, RECORD_DTYPE)

    def start(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Watches `ranges` of (address, nbytes), whole pages.

        Raises CapabilityError where this host does not allow it, UsageError for more ranges than there is room for.
        """
        if len(ranges) >= _MAX_RANGES:
            raise UsageError(f"watching migrations in {len(ranges)} ranges", f"watch at most {_MAX_RANGES - 1}")
        if self._fds:
            raise UsageError("the witness is watching already", "call stop() first")
        try:
            self._frames = _frames()
            self._open()
            self._prove(ranges)
        except NativeError as error:
            self.stop()
            raise CapabilityError(_WHAT, str(error), _RIGHTS) from error
        except BaseException:
            self.stop()
            raise

    def waiting(self) -> int:
        """Records that the next `read` will find, those included for which there was no room. Raises UsageError."""
        return self._opened().waiting()

    def read(self, *, last: bool = False) -> Sightings:
        """What was seen since `start` or the last `read`; calls that the kernel is still busy with come next time.

        `last`: nothing is read after this, so a record that is being written is waited for, for a moment.
        Raises UsageError before `start`.
        """
        log = self._opened()
        records = np.concatenate([self._pending, log.read(last=last)])
        moves, unmatched, self._pending = join(records, self._frames)
        totals = self._sums()
        wide = {reason: (totals[i], totals[16 + i]) for i, reason in enumerate(REASONS) if totals[i] or totals[16 + i]}
        missed = sum(bpf_calls.missed_runs(program) for program in self._programs)
        return Sightings(moves, log.lost + missed, unmatched, wide)

    def _opened(self) -> RecordLog:
        if not self._fds or self._log is None:
            raise UsageError("the witness is not watching", "call start() first")
        return self._log

    def _sums(self) -> list[int]:
        """`struct witness_totals` of all processors together."""
        cpus = [_TOTALS.unpack(value) for value in bpf_calls.look_up_per_cpu(self._totals, _TOTALS.size)]
        return [sum(column) for column in zip(*cpus, strict=True)]

    def stop(self) -> None:
        """Ends watching; does nothing if it was not."""
        self._fds.close()
        bpf_calls.unmap(self._maps)
        self._programs, self._log = [], None
        self._pending = np.empty(0, RECORD_DTYPE)

    def _open(self) -> None:
        create, entries = self._fds.create_map, self._log_entries
        fds = {
            "control": create("control", bpf_calls.ARRAY, _CONTROL_BYTES, 1, bpf_calls.MMAPABLE),
            "records": create("records", bpf_calls.ARRAY, RECORD_DTYPE.itemsize, entries, bpf_calls.MMAPABLE),
            "totals": create("totals", bpf_calls.PERCPU_ARRAY, _TOTALS.size, 1),
        }
        self._totals = fds["totals"]
        for name, nbytes in (("control", _CONTROL_BYTES), ("records", entries * RECORD_DTYPE.itemsize)):
            self._maps.append(bpf_calls.shared(fds[name], nbytes))
        self._log = RecordLog(self._maps[0], self._maps[1], entries, lambda: self._sums()[-1])
        programs = {program.section.removeprefix("raw_tp/"): program for program in read_programs(OBJECT, "raw_tp/")}
        for name, program in programs.items():
            if ":" not in name:
                self._attach(name, program, fds)
        try:
            self._attach("mm_migrate_pages", programs["mm_migrate_pages:8"], fds)
        except NativeError as error:
            if error.errno != errno.EINVAL:  # it reads an argument that this kernel's tracepoint does not have
                raise
            self._attach("mm_migrate_pages", programs["mm_migrate_pages:7"], fds)

    def _attach(self, name: str, program: Program, fds: dict[str, int]) -> None:
        self._programs.append(self._fds.attach(name, program.linked(fds)))

    def _watch(self, ranges: Sequence[tuple[int, int]]) -> None:
        pages = b"".join(_RANGE.pack(address // PAGE_BYTES, nbytes // PAGE_BYTES) for address, nbytes in ranges)
        control = self._maps[0]  # its programs write there too, and so not one byte of theirs is written here
        struct.pack_into("<I", control, _N_RANGES_AT, 0)
        struct.pack_into("<QQI", control, 0, *bpf_calls.own_pid())
        struct.pack_into("<Q", control, _ENTRIES_AT, self._log_entries)
        control[_RANGES_AT : _RANGES_AT + len(pages)] = pages
        struct.pack_into("<I", control, _N_RANGES_AT, len(ranges))

    def _prove(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Moves a page of our own away and back: whatever this kernel's entries look like, it must be seen so.

        A page may refuse to move, if something else in the kernel holds it for a moment; where `move_pages` itself
        says that it stayed, another page is tried. What the kernel says moved must have been seen.
        """
        for _ in range(_PROOFS):
            address, path, seen = self._round_trip()
            if len(path) == 3:
                break
        self._watch(ranges)
        moves = seen[seen["moved"]]
        known = [(address, 1, *step, REASONS.index("syscall"), True, True) for step in pairwise(path)]
        if len(path) < 3 or not np.array_equal(np.sort(moves), np.sort(np.array(known, MOVE_DTYPE))):
            raise CapabilityError(
                _WHAT,
                f"one page that was on nodes {path}, one after the other, was seen as {seen.tolist()}",
                "report this with the kernel's version",
            )

    def _round_trip(self) -> tuple[int, list[int], NDArray[Any]]:
        """(address, nodes that one fresh page was on, what was seen of it): three nodes if it moved as it was told."""
        nodes = numbers(text(_NODES / "has_memory"))
        if len(nodes) < 2:
            raise CapabilityError(_WHAT, "this host has one node with memory", "use a host with two, or tools/numa_vm")
        page = mmap.mmap(-1, PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(anchor)
        # Linux 6.1 finds no page, to move it or to say where it is, while automatic NUMA balancing waits for its use
        numa.bind(address, PAGE_BYTES, nodes[0])
        page[0] = 1
        path = [int(numa.residency(address, PAGE_BYTES)[0])]
        away = next(node for node in nodes if node != path[0])
        self._watch([(address, PAGE_BYTES)])
        for node in (away, path[0]):
            numa.move(address, PAGE_BYTES, node)
            here = int(numa.residency(address, PAGE_BYTES)[0])
            if here != path[-1]:
                path.append(here)
        seen = self.read().moves
        del anchor
        page.close()
        return address, path, seen


def _frames() -> Frames:
    """Which node has which frames, as /sys tells."""
    if platform.machine() != "x86_64":
        raise CapabilityError(_WHAT, f"page-table entries of {platform.machine()} are not decoded", "use x86-64")
    try:
        block_bytes = int(Path("/sys/devices/system/memory/block_size_bytes").read_text(), 16)
    except OSError as error:
        raise CapabilityError(
            _WHAT, f"the kernel does not list its memory blocks ({error})", "use tools/numa_vm"
        ) from (error)
    owners = {
        int(link.name.removeprefix("memory")): int(node.name.removeprefix("node"))
        for node in _NODES.glob("node[0-9]*")
        for link in node.glob("memory[0-9]*")
        if re.fullmatch(r"memory\d+", link.name)
    }
    table = np.full(max(owners, default=-1) + 1, -1, np.int32)
    for block, node in owners.items():
        table[block] = node
    return Frames(block_bytes // PAGE_BYTES, table)
