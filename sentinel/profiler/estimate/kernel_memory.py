"""What CPU kernels allocate inside: memory that no operator names, by rules read from the kernels' source.

A rule runs on fake tensors before its operator is noted, and allocates and frees as the kernel does. `born(tensor)`
says when the kernel makes one of its results; those that a rule does not name are made after it. What counts is torch's
CPU allocator: oneDNN's buffers come from there as well (ATen/native/mkldnn/IDeepRegistration.cpp), MKL's do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

Born = Callable[[torch.Tensor], None]
Rule = Callable[..., None]
"""`rule(born, result, *arguments)`: arguments by the schema, all of them."""

_BLOCKS = {"AVX512": 16, "AVX2": 8}
"""Channels side by side in the layouts that oneDNN chooses for its own kernels: as many as a register takes."""
_PLAIN_CHANNELS = 3
"""With no more channels (a first convolution) its kernels read images as they are."""
_STRIDED_CHANNELS = 64


def _bytes(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _block() -> int:
    return _BLOCKS.get(torch.backends.cpu.get_cpu_capability(), 1)


def _up(channels: int) -> int:
    return -(-channels // _block()) * _block()


def _reordered(x: torch.Tensor) -> torch.Tensor | None:
    """A copy of images (N, C, ...) in oneDNN's layout; None where it reads them as they are."""
    if x.shape[1] <= _PLAIN_CHANNELS:
        return None
    return _images(x.shape, x.itemsize)


def _images(shape: Sequence[int], itemsize: int) -> torch.Tensor:
    return _bytes(shape[0] * _up(shape[1]) * math.prod(shape[2:]) * itemsize)


def _weights(w: torch.Tensor, groups: int) -> torch.Tensor:
    """A copy of weights (O, I / groups, ...) in oneDNN's layout."""
    outputs, inputs = w.shape[0], w.shape[1]
    if groups > 1 and inputs == 1 and outputs == groups:  # each channel by itself
        return _bytes(_up(outputs) * math.prod(w.shape[2:]) * w.itemsize)
    inputs = inputs if inputs <= _PLAIN_CHANNELS else _up(inputs)
    return _bytes(groups * _up(outputs // groups) * inputs * math.prod(w.shape[2:]) * w.itemsize)


def _layout(x: torch.Tensor, w: torch.Tensor, **rest: Any) -> torch.memory_format | None:
    """In which layout torch hands this convolution to oneDNN; None where another kernel has it."""
    backend = torch._C._select_conv_backend(x, w, **rest)
    if "Mkldnn" not in str(backend) or x.dim() != w.dim() or rest["transposed"]:
        return None
    if x.dim() == 3:
        return torch.contiguous_format
    found: torch.memory_format = torch._C._conv_determine_backend_memory_format(x, w, backend)
    return found


def _convolution(
    born: Born,
    result: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> None:
    """ideep's convolution_forward::do_compute: contiguous images and weights are copied into oneDNN's layout, the
    result out of it (ATen/native/mkldnn/Conv.cpp, "MKLDNN Convolution Memory Formats"); of channels_last ones only
    weights.
    """
    rest = {"stride": stride, "padding": padding, "dilation": dilation, "transposed": transposed}
    layout = _layout(x, w, bias=bias, output_padding=output_padding, groups=groups, **rest)
    if layout is None:
        return
    if layout is not torch.contiguous_format:
        born(result)
        _copies = [_weights(w, groups)]
        return
    kept: list[torch.Tensor | None] = [_reordered(x), _weights(w, groups)]
    _made = _images(result.shape, result.itemsize)
    kept.clear()
    born(result)


def _convolution_backward(
    born: Born,
    result: Sequence[torch.Tensor | None],
    gradient: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> None:
    """As `_convolution`, for convolution_backward_data::compute, then convolution_backward_weights::compute_impl."""
    rest = {"stride": stride, "padding": padding, "dilation": dilation, "transposed": transposed}
    layout = _layout(x, w, bias=None, bias_sizes=bias_sizes, output_padding=output_padding, groups=groups, **rest)
    if layout is None:
        return
    blocked = layout is torch.contiguous_format
    if output_mask[0] and result[0] is not None:
        if not blocked:
            born(result[0])
            _copies = [_weights(w, groups)]
        elif _block() == _BLOCKS["AVX512"] and groups == 1 and any(step > 1 for step in stride):
            _strided_gradient(born, result[0], gradient, w)
        else:
            _copies = [_images(gradient.shape, gradient.itemsize), _weights(w, groups)]
            _made = _images(x.shape, x.itemsize)
            _copies.clear()
            born(result[0])
            del _made
    if output_mask[1] and result[1] is not None:
        kept = [_images(gradient.shape, gradient.itemsize), _reordered(x)] if blocked else []
        _made = _weights(w, groups)
        kept.clear()
        born(result[1])


def _strided_gradient(born: Born, made: torch.Tensor, gradient: torch.Tensor, w: torch.Tensor) -> None:
    """oneDNN's brgemm_convolution_bwd_strided, first in its list for AVX-512, computes on channels-last images, without
    blocks, and on weights with input channels by 64. torch's mkldnn_to_dense keeps that order, then copies it.
    """
    wide = -(-w.shape[1] // _STRIDED_CHANNELS) * _STRIDED_CHANNELS
    _copies = [_bytes(gradient.nbytes), _bytes(w.shape[0] * wide * math.prod(w.shape[2:]) * w.itemsize)]
    _computed = _bytes(made.nbytes)
    _copies.clear()
    dense = torch.empty(made.shape, dtype=made.dtype, device=made.device)
    born(made)
    made.copy_(dense)


def _embedding_bag(
    born: Born,
    result: Sequence[torch.Tensor],
    _table: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    *_: Any,
) -> None:
    """ATen/native/EmbeddingBag.cpp, make_bag_size_out and make_max_indices_out: sizes of bags are differences of
    offsets, and stand for the largest indices where these are not asked for.
    """
    size, largest = result[2], result[3]
    if size.shape != offsets.shape or largest.shape != size.shape or not size.numel():
        return
    for each in result:
        born(each)
    size[:-1].copy_(offsets[1:] - offsets[:-1])
    size[-1].copy_(indices.shape[0] - offsets[-1])
    largest.copy_(size)


RULES: dict[Any, Rule] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._embedding_bag.default: _embedding_bag,
}
