"""Moves what existed before profiling into the exclusive arena: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import os
import sys
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from sentinel.core.errors import NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.frozen_objects import thawed
from sentinel.migration.holders import MANAGED, Examined, Holders, Known, examine
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import torch_shim
from sentinel.system import limits, native

TRIM_BYTES = 64 << 20
"""Bytes that may be moved before malloc is asked to give back what that freed."""
KEPT_SHARE = 8
"""Where other Python threads run, what moved storages have left may take an eighth of the free memory."""
SMALL_BYTES = 1024
"""Storages below this stay: such tensors are not managed later either."""


MOST_BATCHES = 16
"""Where other Python threads run, storages move in at most 16 turns, or in turns of `TRIM_BYTES`."""

MOVE_ROW = np.dtype([("storage", "<u8"), ("uses", "<u8"), ("address", "<u8"), ("result", "<i8")])

_MAY_BE_A_CALL = (
    types.BuiltinMethodType,
    types.MethodWrapperType,
    functools.partial,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)
"""Who calls such an object holds nothing else: what it refers to may be in use."""


class _Interpreter(ctypes.Structure):
    """As in the shim's referrers.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("get_objects", "get_referents", "getrefcount", "tuple", "dict")),
        ("never", ctypes.c_void_p),
        ("never_count", ctypes.c_uint64),
        ("slots", ctypes.c_void_p),
        ("slot_count", ctypes.c_uint64),
    ]

    def __init__(self, slots: Counter[int]) -> None:
        self._never = np.array([id(kind) for kind in _MAY_BE_A_CALL], dtype=np.uint64)
        self._slots = np.array(list(slots.elements()), dtype=np.uint64)
        functions = (id(gc.get_objects), id(gc.get_referents), id(sys.getrefcount), id(tuple), id(dict))
        super().__init__(
            *functions, self._never.ctypes.data, len(self._never), self._slots.ctypes.data, len(self._slots)
        )


@dataclass(frozen=True)
class Adoption:
    """One storage: the name of its first tensor, where it is now, and why it stays ("" if it moved)."""

    name: str
    address: int
    nbytes: int
    moved: bool
    reason: str


def adopt(memory: ManagedMemory, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[Adoption]:
    """Moves each distinct storage to pages of its own; one row per storage, in the order of first mention.

    Views, ties and all other tensors of the storage follow. A storage that anything may know by its address
    (numpy, DLPack, shared memory, a reference that can't be explained) stays where it is, and the row says why.
    Call it from the owner's thread at a quiescent point: between steps, no operator of this thread running, the last
    step's graph gone. `data_ptr()` values taken earlier are void afterwards. What finds no room in managed memory
    stays too. Raises NativeError if memory is managed by another thread.

    Other Python threads may run. A storage that a call of theirs may be using stays: they wait for the GIL from when
    its references are counted until it has moved (see decision 0098). Who writes there by an address alone is not seen.
    While other Python threads run, up to `kept_bytes` of what the storages leave stays readable until
    `ManagedMemory.give_back`, the oldest freed first. Tensors that `gc.freeze()` has hidden are moved too, and what is
    alive then is frozen afterwards.
    """
    with thawed() if _any_is_frozen([tensor for _, tensor in tensors]) else nullcontext():
        return _adopt(memory, tensors)


def _any_is_frozen(tensors: Sequence[torch.Tensor]) -> bool:
    """Where none is, what is frozen stays so: a look at it would copy pages that processes share."""
    return bool(gc.get_freeze_count()) and not {id(t) for t in tensors} <= set(map(id, gc.get_objects()))


def _adopt(memory: ManagedMemory, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[Adoption]:
    examined = examine([tensor for _, tensor in tensors])
    names: dict[int, str] = {}
    rows: list[Holders] = []
    for name, holders in zip((name for name, _ in tensors), examined.rows, strict=True):
        key = holders.storage or -len(names) - 1
        if key not in names:
            names[key] = name
            rows.append(holders)
    reasons = [_reason(memory, holders) for holders in rows]
    memory.give_back()
    moved = _move_all(memory, examined, [row for row, reason in zip(rows, reasons, strict=True) if not reason])
    adopted = []
    for name, holders, reason in zip(names.values(), rows, reasons, strict=True):
        address, reason = moved.get(holders.storage, (0, reason))
        adopted.append(Adoption(name, address or holders.address, holders.nbytes, not reason, reason))
    return adopted


def others_run() -> bool:
    """Whether Python knows of threads beside this one."""
    return len(sys._current_frames()) > 1


def kept_bytes() -> int:
    """How much of what storages leave may stay for now: 0 where no other Python thread could be reading it."""
    if not others_run():
        return 0
    free = os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES
    room = limits.room_bytes()  # of the container
    return (free if room is None else min(free, room)) // KEPT_SHARE


def _reason(memory: ManagedMemory, holders: Holders) -> str:
    if holders.memory == MANAGED and memory.contains(holders.address):
        return "it is in managed memory already"
    if holders.objection or holders.nbytes >= SMALL_BYTES:
        return holders.objection
    return "it is smaller than 1 KiB" if holders.nbytes else "it is empty"


def _move_all(memory: ManagedMemory, examined: Examined, rows: list[Holders]) -> dict[int, tuple[int, str]]:
    """Of each storage its new address and "", or 0 and why it stays."""
    others = others_run()
    keep_bytes = kept_bytes()
    # A batch's references are counted again in a walk through all objects, where others run.
    most = max(TRIM_BYTES, sum(row.nbytes for row in rows) // MOST_BATCHES) if others else TRIM_BYTES
    interpreter = _Interpreter(examined.slots) if others else None
    found: dict[int, tuple[int, str]] = {}
    for batch in _batches(rows, most):
        found |= _move(batch, examined.survey, keep_bytes, interpreter)
        memory.trim()  # else malloc keeps what was freed, and all would be resident twice
    return found


def _batches(rows: list[Holders], nbytes: int) -> Iterator[list[Holders]]:
    """`rows` in their order, in lists of `nbytes` or a little more; the last one has what is left."""
    batch: list[Holders] = []
    filled = 0
    for row in rows:
        batch.append(row)
        filled += row.nbytes
        if filled >= nbytes:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _move(
    rows: list[Holders], survey: Known, keep_bytes: int, interpreter: _Interpreter | None
) -> dict[int, tuple[int, str]]:
    """What `_move_all` gives, of one batch: counted and moved in one call, which keeps the GIL."""
    word, pointer = ctypes.c_uint64, ctypes.c_void_p
    call = torch_shim.function("sn_shim_move", ctypes.c_int, pointer, word, ctypes.POINTER(Known), word, pointer)
    moves = np.zeros(len(rows), dtype=MOVE_ROW)
    moves["storage"], moves["uses"] = [row.storage for row in rows], [row.uses for row in rows]
    python = None if interpreter is None else ctypes.addressof(interpreter)
    native.check("sn_shim_move", call(moves.ctypes.data, len(rows), ctypes.byref(survey), keep_bytes, python))
    return {int(move["storage"]): (int(move["address"]), _why(int(move["result"]), python)) for move in moves}


def _why(result: int, python: int | None) -> str:
    if result == -errno.ENOMEM:
        return "it finds no room in managed memory"
    if result < 0:
        raise NativeError("sn_shim_move", -result)
    if result:
        return ""
    return "its references changed while they were counted" if python is None else "another thread may be using it"
