"""Ticks without a change to the model: per block forward and backward, and within the optimizer's step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.errors import UsageError
from sentinel.core.rules import require
from sentinel.core.units import format_bytes
from sentinel.profiler import hooks, module_hooks, slices
from sentinel.profiler.blocks import find_blocks, named_blocks
from sentinel.profiler.names import parameters_of
from sentinel.runtime import RUNTIME
from sentinel.runtime.ordinals import prefix


class Annotation:
    """What one call of `annotate` has added, until `remove()`. Also a context manager.

    `blocks`: names of the modules that tick, in the order of the tree.
    """

    def __init__(self, blocks: Sequence[str], undo: Sequence[Callable[[], None]]) -> None:
        self.blocks = tuple(blocks)
        self._undo = list(undo)

    def remove(self) -> None:
        """Models and optimizers are as they were before. Does nothing the second time."""
        _undo_all(self._undo)

    def __enter__(self) -> Annotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def annotate(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    blocks: Sequence[nn.Module | str] | None = None,
) -> Annotation:
    """Tick at each block's end in forward and in backward, and after each slice of the optimizer's step.

    `blocks`: modules, or their names, to be the layers instead of those that `find_blocks` finds; with one
    model only. A model or optimizer that is annotated already stays as it is; several add up. Forwards without
    grad mode do not tick; nothing ticks without a session. Copies and pickles of the model do not tick.
    """
    models = as_list(model, nn.Module, "model")
    optimizers = as_list(optimizer, Optimizer, "optimizer")
    require(
        (
            not models and not optimizers,
            "annotate(): there is no model and no optimizer in what it was given",
            "give one or several",
        ),
        (
            blocks is not None and len(models) != 1,
            f"blocks: given for {len(models)} models",
            "annotate each model by itself to choose blocks",
        ),
    )
    chosen = [find_blocks(m) if blocks is None else named_blocks(m, blocks) for m in models]
    names: list[str] = []
    owner = object()
    undo: list[Callable[[], None]] = [lambda: module_hooks.remove_all_of(owner)]
    try:
        for one, found in zip(models, chosen, strict=True):
            if RUNTIME.models.find(one) is None:
                names += _annotate_model(one, found, owner)
        for stepper in optimizers:
            if RUNTIME.optimizers.find(stepper) is None:
                undo.append(lambda: RUNTIME.optimizers.remove_all_of(owner))
                ordinal = RUNTIME.optimizers.join(stepper, owner)
                undo.append(slices.SlicedStep(stepper, f"{prefix(ordinal)}optimizer").remove)
    except BaseException:
        _undo_all(undo)
        raise
    return Annotation(names, undo)


def annotated() -> tuple[list[nn.Module], list[Optimizer]]:
    """The models and optimizers that are annotated and alive, in the order of their numbers."""
    return RUNTIME.models.in_order(), RUNTIME.optimizers.in_order()


def watch_steps(optimizer: Optimizer, owner: object) -> None:
    """Tell the session when `optimizer` has stepped, with no ticks: for one that is named but not annotated. Once it is
    annotated, that does."""

    def after(stepped: Optimizer, *_: object) -> None:
        if RUNTIME.sink is not None and RUNTIME.optimizers.find(stepped) is None:
            RUNTIME.sink.step_boundary()

    optimizer.register_step_post_hook(hooks.Owned(owner, after))


def stop_watching(optimizer: Optimizer, owner: object) -> None:
    """Undo `watch_steps`. Does nothing where there is nothing to undo."""
    hooks.remove_all_of(owner, optimizer._optimizer_step_post_hooks)


def notes() -> list[str]:
    """What the annotations in force cannot do, and what that costs, as sentences."""
    found = []
    if RUNTIME.models and compiled_something():
        found.append(
            "torch.compile was used: what it compiles is one layer, of whose operators and tensors only some are seen;"
            " train in eager mode to have them all placed, or compile block by block (docs/loops.md)"
        )
    for optimizer in RUNTIME.optimizers.in_order():
        if not slices.sliceable(optimizer):
            params = [*parameters_of(optimizer)]
            state = [t for held in optimizer.state.values() for t in held.values() if isinstance(t, torch.Tensor)]
            nbytes = sum(t.numel() * t.element_size() for t in (*params, *params, *state))
            found.append(
                f"the step of {type(optimizer).__name__} is one layer, since only SGD, Adam, AdamW, RMSprop and Adagrad"
                f" can step slice by slice: it uses all parameters, gradients and state ({format_bytes(nbytes)})"
            )
    return found


def compiled_something() -> bool:
    """Whether torch.compile has made a graph in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames", {}).get("ok"))


def _undo_all(undo: list[Callable[[], None]]) -> None:
    """The last first. May be called again after an interrupt: each does nothing the second time."""
    for each in reversed(undo):
        each()
    undo.clear()


T = TypeVar("T")


def as_list(given: T | Sequence[T] | None, kind: type[T], what: str) -> list[T]:
    """One object, a sequence of them, or None, as a list without repeats. Raises UsageError for anything else."""
    if given is None:
        return []
    items = [given] if isinstance(given, kind) else given
    found: dict[int, T] = {}
    with contextlib.suppress(TypeError):
        found = {id(item): item for item in items}  # type: ignore[union-attr]
    empty = isinstance(items, list | tuple) and not items
    if (not found and not empty) or not all(isinstance(item, kind) for item in found.values()):
        raise UsageError(f"{what}: {type(given).__name__} is no {kind.__name__}", "give one or several")
    return list(found.values())


def _annotate_model(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], owner: object) -> list[str]:
    start = prefix(RUNTIME.models.join(model, owner))
    names = []
    for name, block in blocks:
        if RUNTIME.blocks.find(block) is None:
            names.append(start + (name or type(model).__name__))
            RUNTIME.blocks.put(block, names[-1], owner)
    module_hooks.install()  # not before: a forward of another thread takes out hooks that nobody uses
    return names
