"""Whether a parameter and its state are still as they were: the same bytes, which no operator has written meanwhile.

That tells of what no recording of operators has: `p.data = other`, `optimizer.state.clear()`, a state that is loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer


class AsItWas(NamedTuple):
    """Of a tensor: where its bytes are, and how often operators have written there."""

    address: int
    version: int


class Before(NamedTuple):
    """`state`: by its names; what is no tensor, as it is."""

    parameter: AsItWas
    state: dict[Any, Any]


def before(optimizer: Optimizer, parameter: torch.Tensor) -> Before:
    """To be asked about later, by `changed`."""
    state = optimizer.state.get(parameter, {})
    return Before(_of(parameter), {name: _of(value) for name, value in state.items()})


def state_of(optimizer: Optimizer, parameter: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of its state."""
    return [each for each in optimizer.state.get(parameter, {}).values() if isinstance(each, torch.Tensor)]


def changed(then: Before, optimizer: Optimizer, parameter: torch.Tensor) -> str:
    """What has changed since: "a parameter", "the state 'exp_avg' of a parameter"; "" where nothing has."""
    now = before(optimizer, parameter)
    if now.parameter != then.parameter:
        return "a parameter"
    missing = object()
    names = then.state | now.state
    other = (name for name in names if not _same(now.state.get(name, missing), then.state.get(name, missing)))
    return next((f"the state {name!r} of a parameter" for name in other), "")


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, AsItWas | int | float) and one == other)


def _of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    version = -1 if value.is_inference() else value._version
    return AsItWas(value.untyped_storage().data_ptr(), version)
