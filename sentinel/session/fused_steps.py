"""Fused optimizers under a memory budget: a call for each tensor.

A fused step names all parameters, gradients and states at once, which may exceed the budget. On a CPU its kernels take
one tensor after the other, so that a call for each gives the same bits, and needs one tensor's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
"""What torch.optim calls, by name, in the module `torch`."""

Step = Callable[..., None]


class FusedSteps:
    """Between `split` and `restore` the functions of `torch` named in FUSED are ours. Both may be called again."""

    def __init__(self) -> None:
        self._whole: dict[str, Step] = {}
        self._ours: dict[str, Step] = {}

    def split(self) -> None:
        """From now on a fused step is a call for each tensor."""
        for name in FUSED:
            if hasattr(torch, name) and name not in self._ours:
                self._whole[name] = getattr(torch, name)
                self._ours[name] = one_by_one(self._whole[name])
                setattr(torch, name, self._ours[name])

    def restore(self) -> None:
        """As before, but where somebody else has put theirs in the place of ours."""
        for name, ours in self._ours.items():
            if getattr(torch, name) is ours:
                setattr(torch, name, self._whole[name])


def one_by_one(whole: Step) -> Step:
    """`whole`, called for each place of the lists that it takes; at once where these are on a device, or are neither
    empty nor all of one length, so that what is wrong is told in PyTorch's words."""

    @functools.wraps(whole)
    def step(*given: Any, **named: Any) -> None:
        lists = [value for value in (*given, *named.values()) if isinstance(value, list | tuple)]
        lengths = {len(value) for value in lists if value}
        if len(lengths) != 1 or any(each.device.type != "cpu" for each in lists[0]):
            whole(*given, **named)
            return
        for place in range(lengths.pop()):
            part = functools.partial(_at, place)
            whole(*map(part, given), **{name: part(value) for name, value in named.items()})

    return step


def _at(place: int, value: Any) -> Any:
    return [value[place]] if isinstance(value, list | tuple) and value else value
