"""Fused optimizers under a memory budget: a call for each tensor, and for each slice of a large one.

A fused step names all parameters, gradients and states at once, which may exceed the budget. On a CPU its kernels take
one tensor after the other, so that a call for each gives the same bits, and needs one tensor's memory. They give
threads whole cache lines, so that of a float32 tensor all elements but those after its last whole vector are computed
alike: slices of whole cache lines give the same bits, too. That of bfloat16 SGD does not: its bits depend on the number
of threads.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
"""What torch.optim calls, by name, in the module `torch`."""

Step = Callable[..., None]
_LEAST_ELEMENTS = 1 << 16
_MOST_BYTES = 16 << 20  # of a tensor at a time: a larger transfer is no faster


class FusedSteps:
    """Between `split` and `restore` the functions of `torch` named in FUSED are ours. Both may be called again.

    `budget_bytes()`: what all tensors may take of memory now. A tensor of which a step needs more than half of that,
    with its gradient and state, is stepped in slices that take about an eighth.
    """

    def __init__(self, budget_bytes: Callable[[], int]) -> None:
        self._budget_bytes = budget_bytes
        self._whole: dict[str, Step] = {}
        self._ours: dict[str, Step] = {}

    def split(self) -> None:
        """From now on a fused step is a call for each tensor."""
        for name in FUSED:
            if hasattr(torch, name) and name not in self._ours:
                self._whole[name] = getattr(torch, name)
                self._ours[name] = one_by_one(self._whole[name], self._budget_bytes)
                setattr(torch, name, self._ours[name])

    def restore(self) -> None:
        """As before, but where somebody else has put theirs in the place of ours."""
        for name, ours in self._ours.items():
            if getattr(torch, name) is ours:
                setattr(torch, name, self._whole[name])


def one_by_one(whole: Step, budget_bytes: Callable[[], int]) -> Step:
    """`whole`, called for each place of the lists that it takes, and each slice; at once where these are on a device,
    or are neither empty nor all of one length, so that what is wrong is told in PyTorch's words. At once in a forked
    child, too: it has no budget, and a lock that `budget_bytes` takes may have been another thread's at the fork."""
    process = os.getpid()

    @functools.wraps(whole)
    def step(*given: Any, **named: Any) -> None:
        lists = [value for value in (*given, *named.values()) if isinstance(value, list | tuple)]
        lengths = {len(value) for value in lists if value}
        if len(lengths) != 1 or any(each.device.type != "cpu" for each in lists[0]) or os.getpid() != process:
            whole(*given, **named)
            return
        for place in range(lengths.pop()):
            part = functools.partial(_at, place)
            _in_slices(whole, [*map(part, given)], {name: part(value) for name, value in named.items()}, budget_bytes())

    return step


def _in_slices(whole: Step, given: list[Any], named: dict[str, Any], budget_bytes: int) -> None:
    """`whole`, of lists of one tensor each, at once or for slices of those as long as the first one."""
    held = [value[0] for value in (*given, *named.values()) if isinstance(value, list | tuple) and value]
    first = held[0]
    alike = [tensor for tensor in held if tensor.dim() and tensor.numel() == first.numel()]
    fits = first.nbytes * len(alike) <= budget_bytes // 2
    if fits or not all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in alike):
        whole(*given, **named)
        return
    length = _LEAST_ELEMENTS
    while 2 * length * first.itemsize <= min(_MOST_BYTES, budget_bytes // 8 // len(alike)):
        length *= 2
    for begin in range(0, first.numel(), length):
        part = functools.partial(_slice, first.numel(), begin, begin + length)
        whole(*map(part, given), **{name: part(value) for name, value in named.items()})


def _slice(elements: int, begin: int, end: int, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [each.view(-1)[begin:end] if each.dim() and each.numel() == elements else each for each in value]


def _at(place: int, value: Any) -> Any:
    return [value[place]] if isinstance(value, list | tuple) and value else value
