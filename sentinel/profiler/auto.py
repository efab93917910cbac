"""Finds the training loop of a script that was not written for Sentinel, and the ends of one of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sentinel.profiler.annotate import Annotation, annotate
from sentinel.profiler.backward import graph_task

Start = Callable[[Sequence[nn.Module], Sequence[Optimizer]], None]


class AutoLoop:
    """Watches every module and optimizer of this thread, by torch's global hooks, until one step was profiled.

    A step goes from one outermost forward that trains to the first one after the same optimizer has stepped again,
    however many forwards, models and other optimizers lie between. Two steps are let pass, so that optimizer state
    is there; the models and optimizers that they showed are annotated, `start(models, optimizers)` is called as the
    third begins and `end()` as the fourth does. Then all hooks are gone.
    """

    def __init__(self, start: Start, end: Callable[[], None]) -> None:
        self._start, self._end = start, end
        self._thread = threading.get_ident()
        self._depth = 0
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._steps: dict[int, int] = {}
        self._anchor: Optimizer | None = None  # the first optimizer that stepped twice
        self._due = False  # it has stepped since the last forward
        self._annotation: Annotation | None = None
        self._handles: list[RemovableHandle] = [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_post_hook(self._after_step),
        ]

    @property
    def found(self) -> tuple[tuple[nn.Module, ...], tuple[Optimizer, ...]]:
        """Models and optimizers seen to train so far."""
        return tuple(self._models), tuple(self._optimizers)

    @property
    def started(self) -> bool:
        """Whether `start` has been called."""
        return self._annotation is not None

    @property
    def ended(self) -> bool:
        """Whether `end` has been called, or `remove`."""
        return not self._handles

    def remove(self) -> None:
        """Watch no more. What was annotated stays so."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before_forward(self, module: nn.Module, _args: Any) -> None:
        if threading.get_ident() != self._thread or graph_task() != -1:
            return
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return
        if not any(param.requires_grad for param in module.parameters()):
            return  # a loss, an activation
        if self._due:
            self._due = False
            self._boundary()
        if not self.started and not any(module is other for other in self._models):
            self._models.append(module)

    def _after_forward(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if threading.get_ident() == self._thread and graph_task() == -1:
            self._depth = max(self._depth - 1, 0)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self.started and not any(optimizer is other for other in self._optimizers):
            self._optimizers.append(optimizer)
        count = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if self._anchor is None and count == 2:
            self._anchor = optimizer
        self._due |= optimizer is self._anchor

    def _boundary(self) -> None:
        """One step has ended, the next begins."""
        if self._annotation is None:
            self._annotation = annotate(self._models, self._optimizers)
            self._start(self._models, self._optimizers)
        else:
            self.remove()
            self._end()
