"""Operators on fake tensors, made of the operators that their CPU kernels call inside: each is seen, as in a recording.

Sparse gradients first: PyTorch's fake tensors run these on zeros, which have no rows. Each kernel is told what is known
of values, before its own arguments: how many rows are left once equal ones are added up hangs on the indices. Where
these are not known, none are equal, as the kernel that adds them up allocates for
(ATen/native/sparse/SparseTensor.cpp, _coalesce_sparse_cpu), and what is made from them afterwards is at most as large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from sentinel.profiler.backward import graph_task
from sentinel.profiler.estimate.known_values import KnownValues

aten = torch.ops.aten


def _sparse(indices: torch.Tensor, values: torch.Tensor, like: Any, *, coalesced: bool) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, like, is_coalesced=coalesced)
    return made


def _is_sparse(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def _coalesce(known: KnownValues, x: torch.Tensor) -> torch.Tensor:
    indices, values = x._indices(), x._values()
    flat = indices.squeeze(0) if x.sparse_dim() == 1 else indices.sum(0)
    new_indices, new_values = torch.empty_like(indices), torch.empty_like(values)
    _order = flat.sort()
    named = known.value(indices)
    if named is None:
        return _sparse(new_indices, new_values, x.shape, coalesced=True)
    with _disable_current_modes():
        rows = torch.unique(named, dim=1)
        filled = named.new_zeros(named.shape)
        filled[:, : rows.shape[1]] = rows
    known.learn(new_indices, filled, ours=True)
    left = rows.shape[1]
    return _sparse(new_indices.narrow(1, 0, left), new_values.narrow(0, 0, left), x.shape, coalesced=True)


def _add_in_place(_known: KnownValues, x: torch.Tensor, other: Any, **_: Any) -> Any:
    if _is_sparse(other) and not _is_sparse(x):
        return x
    return NotImplemented


def _add(_known: KnownValues, x: Any, other: Any, **_: Any) -> Any:
    if not (_is_sparse(x) and _is_sparse(other)):
        return NotImplemented
    indices = torch.cat([x._indices(), other._indices()], 1)
    return _sparse(indices, torch.cat([x._values(), other._values()]), x.shape, coalesced=False)


def _mask(_known: KnownValues, x: torch.Tensor, mask: torch.Tensor) -> Any:
    if _is_sparse(x) or not _is_sparse(mask) or mask.sparse_dim() != 1:
        return NotImplemented
    indices = mask._indices()
    return _sparse(indices.clone(), x.index_select(0, indices.squeeze(0)), x.shape, coalesced=True)


def _clone(_known: KnownValues, x: Any, **_: Any) -> Any:
    """autograd/functions/accumulate_grad.h: a sparse gradient that nobody else holds is taken over, not copied."""
    if not _is_sparse(x) or graph_task() == -1:
        return NotImplemented
    return _sparse(x._indices(), x._values(), x.shape, coalesced=False)


def _bag_backward(
    _known: KnownValues,
    gradient: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bag_of: torch.Tensor,
    _bag_size: torch.Tensor,
    _largest: torch.Tensor,
    rows: int,
    _scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: torch.Tensor | None,
    padding: int = -1,
) -> Any:
    """ATen/native/EmbeddingBag.cpp, _embedding_bag_backward and _embedding_bag_sparse_backward."""
    if not sparse or mode != 0 or padding != -1:
        return NotImplemented
    if not bag_of.numel():
        counts = offsets.new_zeros(indices.numel() + 1)
        counts.index_add_(0, offsets, torch.ones_like(offsets))
        counts[0] -= 1
        bag_of = counts.cumsum(0)[: indices.numel()]
    values = gradient.index_select(0, bag_of)
    if weights is not None:
        values.mul_(weights.unsqueeze(1))
    return _sparse(indices.reshape(1, -1), values, (rows, gradient.shape[1]), coalesced=False)


def _safe_softmax(_known: KnownValues, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """ATen/native/transformers/attention.cpp, _safe_softmax: rows that are masked in whole become zeros."""
    out = x.softmax(dim, dtype)
    masked = x.isneginf().all(dim, keepdim=True)
    return torch.where(masked, torch.zeros((), dtype=out.dtype, device=out.device), out)


def _mean(
    _known: KnownValues,
    x: torch.Tensor,
    dims: Sequence[int] | None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """ATen/native/ReduceOps.cpp, mean_out: a sum, divided in place; of half precision by way of float32."""
    kind, axes = dtype or x.dtype, list(dims or range(x.dim()))
    half = kind in (torch.float16, torch.bfloat16)
    added = aten._to_copy(x, dtype=torch.float32) if half else x
    out: torch.Tensor = added.sum(axes, keepdim, dtype=torch.float32 if half else kind).div_(x.numel())
    return aten._to_copy(out, dtype=kind) if half else out


KERNELS: dict[Any, Callable[..., Any]] = {
    aten._coalesce.default: _coalesce,
    aten.add_.Tensor: _add_in_place,
    aten.add.Tensor: _add,
    aten.sparse_mask.default: _mask,
    aten._embedding_bag_backward.default: _bag_backward,
    aten.clone.default: _clone,
    aten._safe_softmax.default: _safe_softmax,
    aten.mean.dim: _mean,
}
"""`kernel(known, *arguments)`. NotImplemented: it has nothing to say of these arguments; the operator runs as ever."""
