"""Small tensors of a batch go from a worker to the trainer inside the message.

torch hands the memory of each tensor over by a descriptor, for which the two processes have to talk to each other. That
takes longer than to copy some KiB.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

ROOM_BYTES = 32 << 10
"""Of small tensors in all messages that may be under way at once: half of what a pipe holds,
so that no worker waits for room on their account."""
_DEEPEST, _MOST_PARTS = 4, 4096
"""Containers within containers are looked into so far; and a batch of more parts than that is not looked through."""
_PLAIN = (str, bytes, int, float, bool, complex, type(None), np.ndarray)


class ByValue:
    """Stands for a tensor, which is what it becomes where it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._data = bytearray(tensor.reshape(-1).view(torch.uint8).numpy())
        self._dtype, self._shape = tensor.dtype, tuple(tensor.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._data, self._dtype, self._shape)


class _NotKnown(Exception):
    """Of this batch it is not known which tensors it holds."""


def with_small_ones_inside(batch: Any, room: int) -> Any:
    """`batch` with a ByValue in place of small tensors, of `room` bytes together, in tuples, lists and dicts.

    Those that share their memory with others, are of a class of their own, or more than bytes, stay as they are. So
    does a batch that has objects of other kinds, for they may hold the same tensors.
    """
    met: dict[int, torch.Tensor] = {}
    try:
        _meet(batch, met, _DEEPEST, 0)
    except _NotKnown:
        return batch
    small = {key: tensor for key, tensor in met.items() if _is_small(tensor, room)}
    if not small:
        return batch
    owners = Counter(_memory(tensor) for tensor in met.values())
    inside = {}
    for key, tensor in sorted(small.items(), key=lambda each: each[1].nbytes):
        if owners[_memory(tensor)] == 1 and tensor.nbytes <= room:
            inside[key] = _by_value(tensor)
            room -= tensor.nbytes
    return _replaced(batch, inside)


def _rebuilt(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _is_small(tensor: torch.Tensor, room: int) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and 0 < tensor.nbytes <= room
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _memory(tensor: torch.Tensor) -> int:
    """Equal where tensors may share memory."""
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # it has none, or is not all of its kind: whatever it is, it stays
        return -1


def _by_value(tensor: torch.Tensor) -> ByValue | torch.Tensor:
    try:
        return ByValue(tensor)
    except Exception:  # of a kind that has no bytes to copy: torch knows how it is sent, or why not
        return tensor


def _meet(batch: Any, met: dict[int, torch.Tensor], depth: int, before: int) -> int:
    """Puts the tensors of `batch` into `met`, by their id; returns how many parts were looked at. Raises _NotKnown."""
    if isinstance(batch, torch.Tensor):
        met[id(batch)] = batch
        return before + 1
    kind = type(batch)
    if kind in _PLAIN or isinstance(batch, np.generic | torch.Size | torch.dtype):
        return before + 1
    named = isinstance(batch, tuple) and hasattr(batch, "_fields")
    if not depth or not (named or kind in (tuple, list, dict)) or before + len(batch) > _MOST_PARTS:
        raise _NotKnown
    for each in batch.values() if kind is dict else batch:
        before = _meet(each, met, depth - 1, before)
    return before


def _replaced(batch: Any, inside: dict[int, Any]) -> Any:
    kind = type(batch)
    if isinstance(batch, torch.Tensor):
        return inside.get(id(batch), batch)
    if kind is dict:
        return {key: _replaced(value, inside) for key, value in batch.items()}
    if kind in (tuple, list):
        return kind(_replaced(each, inside) for each in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(_replaced(each, inside) for each in batch)
    return batch
