"""FakeJob: what a factory gives (a model, inputs, a loss, an optimizer) as a training step on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from sentinel.core.errors import UsageError
from sentinel.profiler.annotate import as_list
from sentinel.profiler.blocks import tensors_in

WANTED = (
    "return (model, inputs), (model, inputs, loss), (model, inputs, loss, optimizer), or a dict with model, optimizer"
    " and step"
)
"""`loss(output)` gives a scalar, `optimizer(parameters)` an optimizer, `step()` trains one step."""


@dataclass(frozen=True)
class FakeJob:
    """`step()` trains one step of the models, and steps the optimizers."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    step: Callable[[], object]


def job_of(made: object, where: str) -> FakeJob:
    """The job that factory `where` has made. Raises UsageError for what is none."""
    if isinstance(made, Mapping):
        return _of_mapping(made, where)
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4 or not isinstance(made[0], nn.Module):
        kind = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise UsageError(f"{where} gives {kind}", WANTED)
    model, inputs, loss, optimizer = (*made, None, None)[:4]
    for what, each in (("loss", loss), ("optimizer", optimizer)):
        if each is not None and not callable(each):
            raise UsageError(f"{where}: its {what}, {type(each).__name__}, cannot be called", WANTED)
    model.train()
    stepper = (optimizer or torch.optim.AdamW)([p for p in model.parameters() if p.requires_grad])
    if not isinstance(stepper, Optimizer):
        raise UsageError(f"{where}: its optimizer gives {type(stepper).__name__}", WANTED)

    def step() -> None:
        fresh = tree_map(_fresh, inputs)  # a batch is made for each step
        if isinstance(fresh, Mapping):
            output = model(**fresh)
        else:
            output = model(*fresh) if isinstance(fresh, tuple | list) else model(fresh)
        _scalar(loss(output) if loss is not None else _loss_of(output), where).backward()
        del output, fresh
        stepper.step()
        stepper.zero_grad()

    return FakeJob((model,), (stepper,), step)


def _of_mapping(made: Mapping[str, Any], where: str) -> FakeJob:
    step = made.get("step")
    if not callable(step) or set(made) - {"model", "optimizer", "step"}:
        raise UsageError(f"{where} gives a dict with {', '.join(map(str, made)) or 'nothing'}", WANTED)
    models = as_list(made.get("model"), nn.Module, f"{where}: model")
    return FakeJob(models, as_list(made.get("optimizer"), Optimizer, f"{where}: optimizer"), step)


def _fresh(value: Any) -> Any:
    """Integers are copied, for their values count where they name rows of a table."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_like(value) if value.is_floating_point() else value.clone()


def _loss_of(output: Any) -> torch.Tensor:
    """The loss that a model gives itself, else the mean of the first floating-point tensor that it gives."""
    given = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(given, torch.Tensor):
        return given
    for tensor in tensors_in(output):
        if tensor.is_floating_point():
            return tensor.float().mean()
    raise UsageError("the model's output has no loss and no floating-point tensor", WANTED)


def _scalar(loss: Any, where: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError(f"{where}: its loss is not a scalar tensor", WANTED)
    return loss
