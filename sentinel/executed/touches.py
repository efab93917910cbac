"""What operators touch, and on which node it is at that moment, asked from the kernel operator by operator.

Bytes are counted in lines of 64, each once a layer and storage: as often as a plan would want it in fast memory.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.blocks import tensors_in
from sentinel.system.numa import nodes_of

LINE_BYTES = 64
_LINES_A_PAGE = PAGE_BYTES // LINE_BYTES
NOWHERE = -1
"""Stands for the node of a page that was never written, or is not ours to see."""
_ONLY_ROOM = ("empty", "new_empty", "resize", "set_", "_unsafe_view", "lift_fresh", "_local_scalar_dense")
_ROWS_READ = {"embedding": (0, 1), "_embedding_bag": (0, 1), "_embedding_bag_forward_only": (0, 1)}
"""Operator -> (table, indices): which arguments tell that only some rows of a table are read."""

Nodes = Callable[[NDArray[np.uint64]], NDArray[np.int32]]


class Storages:
    """Which lines of which storages have been counted in the layer under way."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[StorageWeakRef, NDArray[np.bool_]]] = {}

    def forget(self) -> None:
        """A layer begins: everything counts from zero."""
        self._seen.clear()

    def fresh(self, storage: torch.UntypedStorage, lines: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Those of `lines`, counted from the storage's first, that were not counted yet, ascending; they are from now
        on."""
        key = storage._cdata
        held = self._seen.get(key)
        total = -(-storage.nbytes() // LINE_BYTES)
        if held is None or len(held[1]) < total:
            # the weak reference keeps the number from being given to another storage while the layer lasts
            held = (StorageWeakRef(storage), np.zeros(total, bool))
            self._seen[key] = held
        seen = held[1]
        if isinstance(lines, slice):
            found: NDArray[np.int64] = np.flatnonzero(~seen[lines]) + lines.start
        else:
            found = np.unique(lines)
            found = found[~seen[found]]
        seen[found] = True
        return found


class Touches(TorchDispatchMode):
    """While it is entered: bytes touched by node, of every operator on this thread, backward included.

    `by_node`: node -> bytes; what is on no node (never written, or not ours to see) under -1. `on_operator` is
    called after each.
    """

    def __init__(self, nodes: Nodes = nodes_of, on_operator: Callable[[], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_node: Counter[int] = Counter()
        self._nodes, self._on_operator = nodes, on_operator
        self._storages = Storages()

    def end_layer(self) -> None:
        """What is touched from now on belongs to the next layer."""
        self._storages.forget()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then ask where its operands are."""
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and not name.startswith(_ONLY_ROOM):
            operands = [*tensors_in((args, kwargs or {})), *tensors_in(out)]
            rows = _rows_of(name, args, operands)
            for tensor in operands:
                self._count(tensor, rows)
        if self._on_operator is not None:
            self._on_operator()
        return out

    def _count(self, tensor: torch.Tensor, rows: dict[int, torch.Tensor]) -> None:
        for part in _strided(tensor):
            storage = part.untyped_storage()
            if part.device.type != "cpu" or not part.numel() or not storage.nbytes():
                continue
            wanted = rows.get(id(part))
            lines = _extent(part) if wanted is None else _row_lines(part, wanted)
            fresh = self._storages.fresh(storage, lines)
            if len(fresh):
                base = storage.data_ptr() // LINE_BYTES
                pages, counts = _runs((fresh + base) // _LINES_A_PAGE)
                found = self._nodes((pages * PAGE_BYTES).astype(np.uint64))
                for node in np.unique(found).tolist():
                    key = node if node >= 0 else NOWHERE
                    self.by_node[key] += int(counts[found == node].sum()) * LINE_BYTES


def _runs(ascending: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each number in it once, and how often it is there: np.unique without its sorting, the most of a measured step."""
    first = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[first], np.diff(first, append=len(ascending))


def _strided(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,) if tensor.layout is torch.strided else ()


def _extent(tensor: torch.Tensor) -> slice:
    """Lines from the first to the last element: of a view with gaps, the gaps too."""
    each = tensor.element_size()
    first = tensor.storage_offset() * each
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) * each + each
    return slice(first // LINE_BYTES, -(-last // LINE_BYTES))


def _rows_of(name: str, args: Any, operands: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """id of a tensor -> the rows of it that are touched, where not all of them are."""
    if name in _ROWS_READ:
        table, indices = _ROWS_READ[name]
        return {id(args[table]): args[indices]}
    sparse = next((t for t in operands if t.layout is torch.sparse_coo and t.sparse_dim() == 1), None)
    if sparse is None or name.startswith(("coalesce", "_coalesce", "to_dense", "_to_dense")):
        return {}
    rows = sparse._indices()[0]
    return {id(t): rows for t in operands if t.layout is torch.strided and t.shape == sparse.shape}


def _row_lines(table: torch.Tensor, rows: torch.Tensor) -> NDArray[np.int64]:
    each = table.element_size()
    wanted = np.unique(np.frombuffer(_bytes_of(rows), np.int64 if rows.element_size() == 8 else np.int32))
    first, stride = int(table.storage_offset()), int(table.stride(0))
    begin: NDArray[np.int64] = (first + wanted.astype(np.int64) * stride) * each
    nbytes = table[0].numel() * each
    count = -(-nbytes // LINE_BYTES) + 1  # a row may begin within a line
    lines = begin[:, None] // LINE_BYTES + np.arange(count)
    found: NDArray[np.int64] = lines[lines <= (begin[:, None] + nbytes - 1) // LINE_BYTES]
    return found


def _bytes_of(tensor: torch.Tensor) -> bytes:
    held = tensor.contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel() * held.element_size())
