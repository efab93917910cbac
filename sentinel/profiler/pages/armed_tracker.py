"""The one arm-and-refault engine under the page trackers that read it in different ways."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.ending import end_all
from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.core.page_runs import in_chunks, pages_of_runs
from sentinel.core.trace import LEAST_GRANULES, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE, Quality
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.profiler.pages import native_touch
from sentinel.profiler.pages.protocol import COUNTS, AddressRange, Others, PageSamples, nobody
from sentinel.runtime import RUNTIME
from sentinel.system import limits

_PROBE_PAGES = 512  # touched before the first mark, to see that touches arrive and what one costs
_PROBE_LAYER = 2**31 - 1
_DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EMFILE, errno.ENOENT)
_TOO_OLD = errno.EOPNOTSUPP  # what the library says where no right would help

GRANULE_BYTES = 2 << 20
"""What large tensors may be watched by instead of pages: a huge page, which one fault maps whole."""

TWICE = "reads of a page after its first write in the same layer"
PINNED = "direct I/O (O_DIRECT), process_vm_* and other calls that pin the pages they access"
DEVICES = "accesses of devices and to pages pinned before the layer (DMA, RDMA, io_uring's fixed buffers)"
CHILDREN = "accesses of forked children, which have copies of their own"


@dataclass(frozen=True)
class Cost:
    """What one touch costs under the tracker, in ns of the touching thread."""

    read_ns: float = 0.0
    write_ns: float = 0.0


@dataclass
class Reader:
    """How one tracker reads the engine's touches. `kind`: native_touch.TABLE and so on.

    `what` it does and the `remedy` where that is refused; `too_old`: what a kernel without it lacks.
    """

    name: str
    kind: int
    what: str
    remedy: str
    blind_to: tuple[str, ...]
    sees: tuple[str, ...] = ("reads", "writes")
    too_old: str = ""

    def open(self, n_pages: int, layout: Sequence[tuple[AddressRange, int]]) -> int | None:
        """Before the watch begins: the address of a table that this reader fills, or None.

        `layout`: the ranges, and the index of each one's first page in the table.
        """
        del n_pages, layout
        return None

    def close(self) -> int:
        """After the watch, also a failed one, or again: touches lost that the library does not know of."""
        return 0


class ArmedTracker:
    """A page tracker: the engine with one reader.

    `granule_bytes`: PAGE_BYTES, or GRANULE_BYTES for tensors of at least four of them; set it before `start`.
    """

    def __init__(self, reader: Reader, granule_bytes: int = PAGE_BYTES) -> None:
        self.name = reader.name
        self.cut_short = False
        self.granule_bytes = granule_bytes
        self._reader = reader
        self._running = False
        self._probe_base = ctypes.c_uint64()  # of the probe; 0 while there is none
        self._cost = Cost()
        self._layer = -1
        self._mark_ns: dict[int, int] = {}
        self._guarded = False

    def prepare(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """See PageTracker. The bytes move to a memfd under their addresses."""
        self._check(ranges)
        self._guarded = native_touch.guarded()
        if not self._guarded and others():
            return  # start says so, if they reach what is watched by then
        with self._undone_on_failure():
            self._back(ranges)

    def start(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """See PageTracker. What `prepare` has not done comes first."""
        self._check(ranges)
        self.cut_short = False
        if not all(native_touch.is_backed(owned) for owned in ranges):  # nor after a fork since
            self._guarded = _guarded_against(others)
        self._begin(ranges)

    def _check(self, ranges: Sequence[AddressRange]) -> None:
        if self._running:
            raise UsageError(f"tracker {self.name}: started twice", "stop it first")
        if not 1 <= len(ranges) < native_touch.MAX_RANGES:
            raise UsageError(
                f"tracker {self.name}: {len(ranges)} ranges to watch", f"give 1 to {native_touch.MAX_RANGES - 1}"
            )

    def try_here(self) -> None:
        """Watch memory of its own for a moment. Raises what `start` raises where this host does not allow it."""
        try:
            self._begin(())
        finally:
            self.close()

    def _begin(self, ranges: Sequence[AddressRange]) -> None:
        self._mark_ns, self._layer = {}, -1
        with self._undone_on_failure():
            self._back(ranges)
            self._open((self._probe, *ranges))
            self._running = True
            self._cost = self._try()

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        RUNTIME.trackers.add(self)
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _back(self, ranges: Sequence[AddressRange]) -> None:
        """A memfd under the probe and `ranges`, in this order, where there is none yet."""
        native_touch.leave_room(limits.room_bytes())
        if not self._probe_base.value:
            native_touch.map_at(self._probe_base, _PROBE_PAGES * PAGE_BYTES)
        for owned in (self._probe, *ranges):
            if not native_touch.is_backed(owned):
                native_touch.back(owned, self._guarded)

    @property
    def _probe(self) -> AddressRange:
        base = self._probe_base.value
        return AddressRange(base, base + _PROBE_PAGES * PAGE_BYTES)

    def mark(self, layer: int) -> None:
        """See PageTracker. Call it where no other thread of the step runs."""
        begin = time.perf_counter_ns()
        self.cut_short |= not native_touch.touch_mark(layer)
        for part in {self._layer, layer} - {-1}:
            self._mark_ns.setdefault(part, 0)
        if self._layer != -1:  # a mark ends a layer: its cost is that layer's
            self._mark_ns[self._layer] += time.perf_counter_ns() - begin
        self._layer = layer

    def stop(self) -> PageSamples:
        """See PageTracker."""
        if not self._running:
            raise UsageError(f"tracker {self.name}: stopped without a start", "start it first")
        probe = self._probe
        try:
            self.cut_short |= not native_touch.touch_stop()
            runs, state = native_touch.take_runs(), native_touch.touch_state()
            native_touch.keep_small(_chunks_in_parts(runs))
        finally:
            lost = self._end()
        runs = _without(runs, probe)
        cost = self._costs(runs)
        np.bitwise_and(runs["seen"], ~native_touch.IN_GRANULE, out=runs["seen"])
        return PageSamples(runs, self._quality(state, int(state.lost) + lost, sum(cost.values())), cost)

    def _open(self, ranges: Sequence[AddressRange]) -> None:
        n_pages, layout = _layout(ranges)
        table = self._reader.open(n_pages, layout)
        native_touch.touch_granules(self._least_bytes())
        result = native_touch.touch_start(self._reader.kind, table, n_pages)
        if -result == _TOO_OLD and self._reader.too_old:
            raise CapabilityError(self._reader.what, self._reader.too_old, "use another tracker, or a later kernel")
        if -result in _DENIED:
            raise CapabilityError(self._reader.what, os.strerror(-result), self._reader.remedy)
        if result < 0:
            raise NativeError("sn_touch_start", -result)

    def _least_bytes(self) -> int:
        """Of tensors watched in granules; 0: none is."""
        return LEAST_GRANULES * self.granule_bytes if self.granule_bytes != PAGE_BYTES else 0

    def close(self) -> None:
        """See PageTracker."""
        self._end()

    def _end(self) -> int:
        """Back to where `start` began, however far that or an earlier end came. Returns touches lost.

        Each part asks what there is to undo. Those left are undone whatever one of them raises.
        """
        if self not in RUNTIME.trackers:
            return 0
        lost: list[int] = []

        def release() -> None:
            native_touch.touch_stop()  # an interrupt came before the other: what it reads from must not go first
            end_all(lambda: lost.append(self._reader.close()), self._give_memory_back)

        end_all(native_touch.touch_stop, release)
        self._running = False
        RUNTIME.trackers.discard(self)
        return sum(lost)

    def _give_memory_back(self) -> None:
        native_touch.unback(self._guarded)
        native_touch.unmap_at(self._probe_base)  # not while it is backed

    def _try(self) -> Cost:
        """Touches the probe's pages, half of them to write, and requires exactly those events."""
        half = _PROBE_PAGES // 2
        ctypes.memset(self._probe.start, 1, self._probe.nbytes)
        native_touch.touch_mark(_PROBE_LAYER)
        write_ns = _timed(lambda at: ctypes.memset(at, 2, half * PAGE_BYTES), self._probe.start)
        reads = _PROBE_PAGES - half
        read_ns = _timed(lambda at: ctypes.string_at(at, reads * PAGE_BYTES), self._probe.start + half * PAGE_BYTES)
        native_touch.touch_mark(-1)
        rows = pages_of_runs(native_touch.touch_runs())
        first = self._probe.start // PAGE_BYTES
        expected = np.arange(first, first + _PROBE_PAGES)
        if not np.isin(expected, rows["page"]).all():
            raise CapabilityError(
                self._reader.what,
                f"{_PROBE_PAGES} pages were touched, {len(rows)} were reported",
                "report this with the kernel's version; use another tracker",
            )
        return Cost(read_ns / reads, write_ns / half)

    def _costs(self, runs: NDArray[Any]) -> dict[int, int]:
        spent: dict[int, float] = {layer: float(ns) for layer, ns in self._mark_ns.items()}
        for part in in_chunks(runs):
            either = self._cost.read_ns * ((part["seen"] & (SEEN_READ | SEEN_UNKNOWN)) != 0)
            per_page = either + self._cost.write_ns * ((part["seen"] & SEEN_WRITE) != 0)
            in_granules = (part["seen"] & native_touch.IN_GRANULE) != 0
            faults = part["npages"] / np.where(in_granules, GRANULE_BYTES // PAGE_BYTES, 1)
            layers, which = np.unique(part["layer"], return_inverse=True)
            for layer, ns in zip(layers.tolist(), np.bincount(which, per_page * faults).tolist(), strict=True):
                spent[layer] = spent.get(layer, 0.0) + ns
        return {layer: int(ns) for layer, ns in spent.items()}

    def _granules(self) -> tuple[str, ...]:
        least = self._least_bytes()
        if not least:
            return ()
        told = f"tensors of at least {format_bytes(least)} are watched in granules of {format_bytes(GRANULE_BYTES)}"
        return (f"{told}, touched whole or not at all; their ends that fill no granule by pages",)

    def _quality(self, state: native_touch.TouchState, lost: int, overhead_ns: int) -> Quality:
        exact = state.unit_pages == 1
        blind = self._reader.blind_to + (() if state.sees_system_calls else ("accesses by system calls",))
        coarse = f"no userfaultfd here: a read maps {state.unit_pages} pages at once, and these count together"
        cost = self._cost
        own_time = (
            f"the tracker's own time: that of marks, and {cost.read_ns:.0f} ns for a page read in a layer,"
            f" {cost.write_ns:.0f} ns for a page written"
        )
        return Quality(
            tracker=self.name,
            counts=COUNTS,
            sees=self._reader.sees if exact else ("touches",),
            lost=lost,
            late=int(state.late),
            overhead_ns=overhead_ns,
            granularity_bytes=int(state.unit_pages) * PAGE_BYTES,
            large_granularity_bytes=GRANULE_BYTES if self._least_bytes() else 0,
            blind_to=blind,
            notes=(
                "a touch is a layer in which the page was used, not an access to DRAM",
                own_time,
                *(() if exact else (coarse,)),
                *self._granules(),
                *_rested(state),
            ),
        )


def close_all() -> None:
    """Closes the trackers that were begun and not closed: an interrupt leaves one that nobody else may know."""
    for tracker in tuple(RUNTIME.trackers):
        tracker.close()


def _rested(state: native_touch.TouchState) -> tuple[str, ...]:
    """What it took to tell apart tensors that follow each other on a page, and where it was not done."""
    if not state.held_peak_bytes:
        return ()
    more = state.held_peak_bytes / state.live_peak_bytes - 1
    told = (
        "freed pages were not used again before their layer ended, but among tensors born and freed in it:"
        f" {more:.1%} more memory at the peak"
    )
    early = f"but for {format_bytes(state.given_up_bytes)}, which would have taken more" if state.given_up_bytes else ""
    return (", ".join(filter(None, (told, early))),)


def _guarded_against(others: Others) -> bool:
    """Whether other threads are held back while memory is replaced. CapabilityError if that can't be, and must."""
    if native_touch.guarded():
        return True
    if names := others():
        raise CapabilityError(
            "replacing the memory of tensors that other threads may write to",
            f"{', '.join(names)} would have to be held back, and userfaultfd is refused here",
            "run as root, set vm.unprivileged_userfaultfd=1, give access to /dev/userfaultfd (Linux 6.1 or later),"
            " or use --tracker ops",
        )
    return False


def _timed(touch: Any, address: int) -> float:
    """Time of this thread in `touch(address)` beyond what it takes when nothing faults, in ns."""
    begin = time.thread_time_ns()
    touch(address)
    middle = time.thread_time_ns()
    touch(address)
    return max(0.0, 2 * middle - begin - time.thread_time_ns())


def _without(runs: NDArray[Any], probe: AddressRange) -> NDArray[Any]:
    """`runs` but for those of the probe, in the same memory: there may be little else."""
    first, stop = probe.start // PAGE_BYTES, probe.stop // PAGE_BYTES
    kept = 0
    for part in in_chunks(runs):
        own = part[(part["layer"] != _PROBE_LAYER) & ((part["page"] < first) | (part["page"] >= stop))]
        runs[kept : kept + len(own)] = own
        kept += len(own)
    return runs[:kept]


def _chunks_in_parts(runs: NDArray[Any]) -> NDArray[np.uint64]:
    """Addresses of the 2 MiB chunks whose pages were not touched alike: a plan may give them different places."""
    per_chunk = GRANULE_BYTES // PAGE_BYTES
    found = []
    for part in in_chunks(runs):
        first: NDArray[np.int64] = part["page"]
        stop: NDArray[np.int64] = first + part["npages"]
        edges = np.concatenate([first, stop]).astype(np.uint64)
        found.append(np.unique(edges[edges % per_chunk != 0] // per_chunk))
    return np.unique(np.concatenate([*found, np.empty(0, np.uint64)])) * np.uint64(GRANULE_BYTES)


def _layout(ranges: Sequence[AddressRange]) -> tuple[int, list[tuple[AddressRange, int]]]:
    """Pages of the table, and where each range begins in it, as the native library lays them out.

    An arena may reserve more addresses than there is memory: the table ends with twice the memory that this process may
    have, and touches beyond it count as lost.
    """
    layout, pages = [], 0
    for owned in ranges:
        layout.append((owned, pages))
        pages += -(-(owned.nbytes // PAGE_BYTES) // 4) * 4
    return min(pages, 2 * limits.reachable_bytes() // PAGE_BYTES), layout
