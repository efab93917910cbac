"""Moves what existed before profiling into the exclusive arena: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sentinel.core.errors import NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.holders import MANAGED, Holders, examine
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import torch_shim
from sentinel.system import limits

TRIM_BYTES = 64 << 20
"""Bytes that may be moved before malloc is asked to give back what that freed."""
KEPT_SHARE = 8
"""Where other Python threads run, what moved storages have left may be one part in so many of the free memory."""
SMALL_BYTES = 1024
"""Storages below this stay: such tensors are not managed later either."""


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
    Call it from the owner's thread at a quiescent point: between steps, no operator running, no other thread
    handling these tensors, the last step's graph gone. `data_ptr()` values taken earlier are void afterwards.
    What finds no room in managed memory stays too. Raises NativeError if memory is managed by another thread.

    While other Python threads run, up to `kept_bytes` of what the storages leave stays readable until
    `ManagedMemory.give_back`, the oldest freed first: an operator of theirs that nobody could see then reads stale
    bytes, not unmapped ones.
    """
    names: dict[int, str] = {}
    rows: list[Holders] = []
    for (name, _), holders in zip(tensors, examine([tensor for _, tensor in tensors]), strict=True):
        key = holders.storage or -len(names) - 1
        if key not in names:
            names[key] = name
            rows.append(holders)
    adopted = []
    untrimmed = 0
    memory.give_back()
    keep_bytes = kept_bytes()
    for name, holders in zip(names.values(), rows, strict=True):
        adopted.append(_adopt(memory, name, holders, keep_bytes))
        untrimmed += holders.nbytes if adopted[-1].moved else 0
        if untrimmed >= TRIM_BYTES:  # else malloc keeps what was freed, and all would be resident twice
            memory.trim()
            untrimmed = 0
    memory.trim()
    return adopted


def kept_bytes() -> int:
    """How much of what storages leave may stay for now: 0 where no other Python thread could be reading it."""
    if len(sys._current_frames()) == 1:
        return 0
    free = os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES
    room = limits.room_bytes()  # of the container
    return (free if room is None else min(free, room)) // KEPT_SHARE


def _adopt(memory: ManagedMemory, name: str, holders: Holders, keep_bytes: int) -> Adoption:
    reason = _reason(memory, holders)
    address = holders.address
    if not reason:
        moved, reason = _move(holders, keep_bytes)
        address = moved or address
    return Adoption(name, address, holders.nbytes, not reason, reason)


def _reason(memory: ManagedMemory, holders: Holders) -> str:
    if holders.memory == MANAGED and memory.contains(holders.address):
        return "it is in managed memory already"
    if 0 < holders.nbytes < SMALL_BYTES and not holders.objection:
        return "it is smaller than 1 KiB"
    if holders.nbytes == 0 and not holders.objection:
        return "it is empty"
    return holders.objection


def _move(holders: Holders, keep_bytes: int) -> tuple[int, str]:
    """The new address and "", or 0 and why the storage stays."""
    word = ctypes.c_uint64
    call = torch_shim.function("sn_shim_move", ctypes.c_int, word, word, word, ctypes.POINTER(word))
    address = ctypes.c_uint64()
    result = call(holders.storage, holders.uses, keep_bytes, ctypes.byref(address))
    if result == -errno.ENOMEM:
        return 0, "it finds no room in managed memory"
    if result < 0:
        raise NativeError("sn_shim_move", -result)
    return (address.value, "") if result else (0, "its references changed while they were counted")
