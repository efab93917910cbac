"""Small tensors of a batch go from a worker to the trainer inside the message.

torch hands the memory of each tensor over by a descriptor, for which the two processes have to talk to each other. That
takes longer than to copy some KiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

SMALL_BYTES = 16 << 10
_DEEPEST = 4
"""Containers within containers are looked into so far."""


class ByValue:
    """Stands for a tensor, which is what it becomes where it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self._tensor
        data = bytearray(tensor.reshape(-1).view(torch.uint8).numpy())
        return _rebuilt, (data, tensor.dtype, tuple(tensor.shape))


def with_small_ones_inside(batch: Any) -> Any:
    """`batch` with a ByValue in place of each small tensor, in tuples, lists and dicts. Those that are views of others,
    of a class of their own, or more than bytes, stay."""
    found = {id(tensor): tensor for tensor in _tensors(batch, _DEEPEST) if _is_small(tensor)}
    if not found:
        return batch
    owners = Counter(tensor.data_ptr() for tensor in found.values())
    inside = {key: ByValue(tensor) for key, tensor in found.items() if owners[tensor.data_ptr()] == 1}
    return _replaced(batch, lambda tensor: inside.get(id(tensor), tensor), _DEEPEST)


def _rebuilt(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and 0 < tensor.nbytes <= SMALL_BYTES
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth and isinstance(batch, tuple | list):
        for each in batch:
            yield from _tensors(each, depth - 1)
    elif depth and type(batch) is dict:
        for each in batch.values():
            yield from _tensors(each, depth - 1)


def _replaced(batch: Any, put: Callable[[torch.Tensor], Any], depth: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return put(batch)
    if not depth:
        return batch
    if type(batch) is dict:
        return {key: _replaced(value, put, depth - 1) for key, value in batch.items()}
    if type(batch) in (tuple, list):
        return type(batch)(_replaced(each, put, depth - 1) for each in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_replaced(each, put, depth - 1) for each in batch))
    return batch
