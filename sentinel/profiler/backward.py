"""Ticks within backward: a block's backward has ended when the next one's begins, or backward itself ends."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Variable

from sentinel.profiler.blocks import tensors_in
from sentinel.profiler.unobserved import without_function_modes
from sentinel.runtime import RUNTIME

graph_task = torch._C._current_graph_task_id
"""Number of the backward that is running; -1 outside of one."""

HEAD = "loss"
"""Name of the layer from the last forward tick to the first block that backward enters."""

_MOST_NODES = 8  # an output that holds more tensors (caches, hidden states) is entered through its first ones


def outside() -> None:
    """Called where no backward runs: one that an exception ended left its mark, and no tick."""
    RUNTIME.under_way.active = False


def begin() -> None:
    """Backward has reached the outputs of a model."""
    now = RUNTIME.under_way
    if not now.active and RUNTIME.sink is not None:
        now.active, now.within = True, HEAD
        # runs when the whole backward is done, accumulated gradients included
        Variable._execution_engine.queue_callback(_end)


def enter(name: str, entry: _Entry) -> None:
    """Backward has reached the outputs of block `name`, so it is done with the one before."""
    sink, now = RUNTIME.sink, RUNTIME.under_way
    if sink is None:
        return
    begin()
    if entry is not now.recomputed:  # else its recomputation ticked just now
        sink.tick(now.within, "backward", "annotate")
    now.within, now.recomputed = name, None


def recompute(name: str, output: object) -> None:
    """Activation checkpointing has computed block `name` again."""
    sink = RUNTIME.sink
    if sink is not None:
        begin()
        RUNTIME.under_way.recomputed = watch(output, name)
        sink.tick(name, "backward", "annotate")


def _end() -> None:
    now = RUNTIME.under_way
    if now.active:
        now.active = False
        sink = RUNTIME.sink
        if sink is not None:
            sink.tick(now.within, "backward", "annotate")


class _Entry:
    """Runs when the gradient of an output of block `name` is complete; once per backward. Holds no tensor."""

    __slots__ = ("_name", "_task")

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._task = -1

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        del gradients
        task = graph_task()
        if task == self._task:
            return
        self._task = task
        if self._name is None:
            begin()
        else:
            enter(self._name, self)


def watch(output: object, name: str | None) -> _Entry:
    """Tick as backward enters block `name` by `output`; None: only note that backward has begun.

    Hooks go to the graph's nodes: a hook on a tensor would stay on it, and in what is saved of it.
    """
    entry = _Entry(name)
    nodes: list[Any] = []
    with without_function_modes():
        for tensor in tensors_in(output):
            node = tensor.grad_fn if tensor.requires_grad else None
            if node is not None and node not in nodes:
                nodes.append(node)
                node.register_prehook(entry)
                if len(nodes) == _MOST_NODES:
                    break
    return entry
