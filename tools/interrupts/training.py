"""A small model and its training: the same numbers for everyone who makes one."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

MORE_STEPS = 6
"""Steps of a life after those of its first session."""

Values = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""A parameter, and its state."""


class Shape(NamedTuple):
    """`depth` layers of `width` x `width`; the first session is to train `steps` steps."""

    width: int
    depth: int
    steps: int


class Training:
    """`grow` makes what it trains, `step(i)` trains on the i-th batch. The first layer is there from the beginning."""

    model: nn.Sequential
    optimizer: torch.optim.AdamW

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(7)
        self.shape = shape
        self.losses: dict[int, float] = {}
        self.kept: list[Values] = []
        self.first: nn.Linear | None = self._layer()
        self._batches = [torch.randn(32, shape.width) for _ in range(shape.steps + MORE_STEPS)]

    def grow(self) -> None:
        """The other layers, and the optimizer; with the values that `leave` has kept, if it has kept any."""
        first, self.first = self.first or self._layer(), None
        self.model = nn.Sequential(first, *(self._layer() for _ in range(self.shape.depth - 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        for number, values in enumerate(self.kept):
            self._set(number, values)
        self.kept = []

    def leave(self) -> None:
        """Copies what there is, and lets go of model and optimizer."""
        if not hasattr(self, "model"):
            return
        self.kept = [_copy(values) for values in self.values()]
        del self.model, self.optimizer
        gc.collect()

    def step(self, i: int) -> None:
        """Forward, backward, and the optimizer's step."""
        self.optimizer.zero_grad()
        loss = self.model(self._batches[i]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses[i] = loss.item()

    def values(self) -> list[Values]:
        """Of each parameter. No copies."""
        return [(param, dict(self.optimizer.state.get(param, {}))) for param in self.model.parameters()]

    def cut_step(self, i: int, found: Sequence[bytes]) -> set[int]:
        """The step as one that was cut short and left the parameters with the bits `found`. The numbers of those that
        had stepped; one whose bits are neither those from before the step nor those after it is as before."""
        before = [_copy(values) for values in self.values()]
        self.step(i)
        del self.losses[i]
        stepped = {n for n, bits in enumerate(bits_of(self.values())) if bits == found[n]}
        for n in set(range(len(before))) - stepped:
            self._set(n, before[n])
        return stepped

    def _set(self, number: int, values: Values) -> None:
        param = list(self.model.parameters())[number]
        value, state = values
        with torch.no_grad():
            param.copy_(value)
        self.optimizer.state.pop(param, None)
        if state:
            self.optimizer.state[param] = {name: each.clone() for name, each in state.items()}

    def _layer(self) -> nn.Linear:
        return nn.Linear(self.shape.width, self.shape.width)


def bits_of(values: Sequence[Values]) -> list[bytes]:
    """Of each parameter and its state. By address: an array would be an alias that keeps the parameter in place."""
    return [b"".join(map(_bits, (param, *(state[name] for name in sorted(state))))) for param, state in values]


def _bits(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _copy(values: Values) -> Values:
    param, state = values
    return param.detach().clone(), {name: value.clone() for name, value in state.items()}
