"""One parameter's update, apart from the others of its optimizer, with the same bits."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop, Rprop

from sentinel.profiler.slices import runs_own_code, twin_of

ALONE: tuple[type[Optimizer], ...] = (
    SGD,
    Adam,  # and AdamW, which is one
    RMSprop,
    Adagrad,
    Adadelta,
    Adamax,
    NAdam,
    RAdam,
    ASGD,
    Rprop,
)
"""Of torch.optim those in which the update of a parameter needs its own gradient and state only."""


def steps_alone(optimizer: Optimizer) -> bool:
    """Whether each parameter's update may be made by itself: torch's own code runs, and it is elementwise."""
    return runs_own_code(optimizer, ALONE)


def step_alone(optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
    """Update `parameter`, one of `group`, by its gradient, as `optimizer.step()` would, and its state with it.

    The optimizer's own step runs on a twin that shares its state and has that one parameter. Its own groups are not
    touched: whatever interrupts this leaves them whole.
    """
    twin = twin_of(optimizer, [])
    twin.param_groups = [{**group, "params": [parameter]}]
    type(optimizer).step.__wrapped__(twin)  # type: ignore[attr-defined]  # without the hooks


def options_of(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """What the update of a parameter of `group` depends on, copied."""
    return {name: _copied(value) for name, value in group.items() if name in optimizer.defaults}


def changed_option(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The name of an option that differs; "" where none does."""
    return next((name for name in before | now if not _same(before.get(name), now.get(name))), "")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
