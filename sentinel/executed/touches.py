"""What operators touch, and on which node it is at that moment, asked from the kernel as each operator ends.

Bytes are counted in lines of 64, each once a layer and storage: as often as a plan would want it in fast memory.
"""

from __future__ import annotations

import ctypes
import errno
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import PAGE_BYTES
from sentinel.executed.tensor_room import Nodes, TensorRoom
from sentinel.profiler import torch_shim
from sentinel.runtime import RUNTIME
from sentinel.system import native
from sentinel.system.numa import nodes_of

LINE_BYTES = 64
_LINES_A_PAGE = PAGE_BYTES // LINE_BYTES
NOWHERE = -1
"""Stands for the node of a page that was never written, or is not ours to see."""

_TOUCHED = np.dtype(
    [
        ("storage", "<u8"),  # its number
        ("address", "<u8"),  # of its first byte
        ("nbytes", "<u8"),  # of the storage
        ("first", "<u8"),  # bytes [first, end) of it
        ("end", "<u8"),
        ("rows", "<u8"),  # address of the numbers of the rows that are touched; 0: all of [first, end)
        ("n_rows", "<u8"),
        ("row_stride", "<u8"),
        ("row_bytes", "<u8"),
    ]
)
"""`sn_touched` of profiler/shim/touched.h."""

_TELL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


class Touches:
    """While it is entered: bytes touched by node, of every operator on this thread, backward included.

    `by_node`: node -> bytes; what is on no node (never written, or not ours to see) under -1. `room`: what
    tensors have of the nodes. `on_operator` is called after each operator that touches anything. The operators are
    watched natively, which changes nothing about them: a watched step allocates what others do, in the same order. One
    at a time in a process; a forked child ends it for itself.
    """

    def __init__(self, nodes: Nodes = nodes_of, on_operator: Callable[[], None] | None = None) -> None:
        self.by_node: Counter[int] = Counter()
        self.room = TensorRoom(nodes)
        self._nodes, self._on_operator = nodes, on_operator
        self._seen: dict[int, NDArray[np.bool_]] = {}  # storage -> which of its lines have been counted in the layer
        self._failed: BaseException | None = None
        self._tell = _TELL(self._told)  # as long as it may be called

    def __enter__(self) -> Self:
        """Raises UsageError where another one is entered, NativeError, CapabilityError without a compiler."""
        result = torch_shim.function("sn_touched_start", ctypes.c_int, _TELL)(self._tell)
        if result == -errno.EBUSY:
            raise UsageError("what operators touch is watched already", "leave the other Touches first")
        native.check("sn_touched_start", result)
        RUNTIME.not_inherited.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises what counting has raised, if nothing else is under way."""
        RUNTIME.not_inherited.discard(self)
        try:
            if error is None:
                self.end_layer()
        finally:
            self.forked()

    def forked(self) -> None:
        """See NotInherited."""
        torch_shim.function("sn_touched_stop", ctypes.c_int)()

    def end_layer(self) -> None:
        """What is touched from now on belongs to the next layer. Raises what counting has raised since the last one,
        NativeError where something was not told."""
        self._seen.clear()
        error = torch_shim.function("sn_touched_forget", ctypes.c_int)()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        native.check("watching what operators touch", error)

    def _told(self, address: int, count: int) -> None:
        """Of one operator, as it ends. Nothing that is raised here would reach anybody."""
        try:
            held = (ctypes.c_char * (count * _TOUCHED.itemsize)).from_address(address)
            for row in np.frombuffer(memoryview(held), _TOUCHED).tolist():
                self._count(*row)
            if self._on_operator is not None:
                self._on_operator()
        except BaseException as error:
            self._failed = self._failed or error

    def _count(
        self,
        storage: int,
        address: int,
        nbytes: int,
        first: int,
        end: int,
        rows: int,
        n_rows: int,
        row_stride: int,
        row_bytes: int,
    ) -> None:
        lines: NDArray[np.int64] | slice
        if rows:
            numbers = np.ctypeslib.as_array((ctypes.c_int64 * n_rows).from_address(rows))
            lines = _row_lines(first + np.unique(numbers) * row_stride, row_bytes)
        else:
            lines = slice(first // LINE_BYTES, -(-end // LINE_BYTES))
        fresh = self._fresh(storage, -(-nbytes // LINE_BYTES), lines)
        if not len(fresh):
            return
        pages, counts = _runs((fresh + address // LINE_BYTES) // _LINES_A_PAGE)
        self.room.add(pages)
        found = self._nodes((pages * PAGE_BYTES).astype(np.uint64))
        for node in np.unique(found).tolist():
            key = node if node >= 0 else NOWHERE
            self.by_node[key] += int(counts[found == node].sum()) * LINE_BYTES

    def _fresh(self, storage: int, total: int, lines: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Those of `lines`, counted from the storage's first of `total`, that were not counted yet, ascending; they are
        from now on."""
        seen = self._seen.get(storage)
        if seen is None or len(seen) < total:
            seen = self._seen[storage] = np.zeros(total, bool)
        if isinstance(lines, slice):
            found: NDArray[np.int64] = np.flatnonzero(~seen[lines]) + lines.start
        else:
            found = np.unique(lines)
            found = found[~seen[found]]
        seen[found] = True
        return found


def _runs(ascending: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each number in it once, and how often it is there: np.unique without its sorting, the most of a measured step."""
    first = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[first], np.diff(first, append=len(ascending))


def _row_lines(begin: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
    """Of rows of `nbytes` that begin there."""
    count = -(-nbytes // LINE_BYTES) + 1  # a row may begin within a line
    lines = begin[:, None] // LINE_BYTES + np.arange(count)
    found: NDArray[np.int64] = lines[lines <= (begin[:, None] + nbytes - 1) // LINE_BYTES]
    return found
