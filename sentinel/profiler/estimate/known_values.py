"""KnownValues: what is in small integer tensors of a step on fake tensors.

Indices are inputs: no weight is needed to know them. What is made of them alone is computed beside the fake tensors, in
memory, so that an estimate knows how many rows of a table a batch names.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MOST_BYTES = 64 << 20
"""Of one tensor; what is larger is unknown."""
_WITHOUT_VALUE = ("empty", "new_empty", "resize", "set_")


class KnownValues:
    """By storage, so that views and tensors that are written in place agree. A tensor that was real when the job's step
    met it is known as it is, and is never written here.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[torch.UntypedStorage, bool]] = {}  # of a fake one -> a real one, whether ours
        self._changed: set[int] = set()  # real storages that the step writes: their values are those of before

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """In memory what `tensor` holds: integers or booleans; None where that is not known. Not to be written."""
        if tensor.is_floating_point() or tensor.is_complex() or tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" and storage._cdata not in self._changed else None
        held = self._storages.get(storage._cdata)
        if held is None:
            return None
        with _disable_current_modes():
            made: Any = torch.empty(0, dtype=tensor.dtype)
            seen: torch.Tensor = made.set_(held[0], tensor.storage_offset(), tensor.shape, tensor.stride())
            return seen

    def forget(self, storage: int) -> None:
        """`storage` (its `_cdata`) is gone, or holds what nobody knows."""
        self._storages.pop(storage, None)
        self._changed.discard(storage)

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """`func`, an operator, has given `result` on fake tensors: compute it in memory where all it takes is known."""
        written = [
            tensor
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(args[i] if i < len(args) else kwargs.get(argument.name))
        ]
        if not self._computed(func, args, kwargs, result, written):
            self.lose(written)

    def lose(self, written: list[torch.Tensor]) -> None:
        """These hold what nobody knows from now on."""
        for tensor in written:
            if tensor.layout != torch.strided:
                continue
            key = tensor.untyped_storage()._cdata
            held, ours = self._storages.get(key, (None, True))
            if held is not None and not ours:  # a view of a real one is written: that holds something else then, too
                self._changed.add(held._cdata)
            self.forget(key)
            if not isinstance(tensor, FakeTensor):
                self._changed.add(key)

    def _computed(self, func: Any, args: Any, kwargs: Any, result: Any, written: list[torch.Tensor]) -> bool:
        made = [tensor for tensor in _tensors(result) if not self._has(tensor)]
        given = _tensors((args, kwargs))
        name = func._schema.name.partition("::")[2]
        if (
            not func._schema.name.startswith("aten::")
            or name.startswith(_WITHOUT_VALUE)
            or not (made or written)
            or not all(map(_may_be_known, made))
            or not all(map(self._is_ours, written))
        ):
            return not written
        values = {id(tensor): self.value(tensor) for tensor in given}
        if any(value is None for value in values.values()):
            return not written
        real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, lambda t: values[id(t)], (args, kwargs))
        with _disable_current_modes(), torch.no_grad(), contextlib.suppress(RuntimeError, IndexError, ValueError):
            real = _tensors(func(*real_args, **real_kwargs))
            theirs = {t.untyped_storage()._cdata for t in given if not isinstance(t, FakeTensor)}
            for tensor, value in zip(_tensors(result), real, strict=True):
                if not self._has(tensor):
                    self.learn(tensor, value, ours=value.untyped_storage()._cdata not in theirs)
            return True
        return False

    def learn(self, tensor: torch.Tensor, value: torch.Tensor, *, ours: bool) -> None:
        """`tensor`, a fake one, holds `value`, whose memory is `ours` to write to."""
        same = value.dtype == tensor.dtype and value.shape == tensor.shape and value.stride() == tensor.stride()
        storage = value.untyped_storage()
        if (
            same
            and value.device.type == "cpu"
            and value.storage_offset() == tensor.storage_offset()
            and storage.nbytes()
        ):
            self._storages[tensor.untyped_storage()._cdata] = storage, ours

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._storages

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        if tensor.layout != torch.strided:
            return False
        _, ours = self._storages.get(tensor.untyped_storage()._cdata, (None, False))
        return ours


def _may_be_known(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and not tensor.is_floating_point() and not tensor.is_complex()
    return plain and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() <= _MOST_BYTES


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
