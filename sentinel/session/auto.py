"""Finds the training loop of an unmodified script by PyTorch's global hooks, annotates it, and profiles one step.

A step is one period of optimizer steps: `[a]` for one optimizer, `[d, g]` for a pair that takes turns. When a
period has been seen twice, the outermost modules that ran forward with gradients are annotated; the next period
is profiled. It begins and ends where the first forward after an optimizer's step begins. An optimizer that steps
several times before another one steps once looks like a period of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sentinel import session
from sentinel.profiler.backward import graph_task

_following: Follower | None = None


def follow() -> Follower:
    """Watch for a training loop from now on. There is one follower in a process."""
    global _following
    if _following is None:
        _following = Follower()
    return _following


def period_of(steps: list[int]) -> int:
    """Length of the shortest sequence that `steps` ends with twice; 0 if there is none."""
    for length in range(1, len(steps) // 2 + 1):
        if steps[-length:] == steps[-2 * length : -length]:
            return length
    return 0


class Follower:
    """Counts optimizer steps, and calls `annotate`, `start_profile` and `end_profile` in the user's place.

    `done`: the loop was found and one of its steps profiled, or the script did it itself.
    """

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._models: dict[int, nn.Module] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self._steps: list[int] = []
        self._period = self._left = 0
        self._hooks: list[RemovableHandle] = [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def finish(self) -> None:
        """The script has ended: a profiled step that no further step followed is ended here."""
        if not self.done and self._period and not self._left and self._profiling():
            session.end_profile()
        self._leave()

    def _before_forward(self, module: nn.Module, _inputs: Any) -> None:
        self._depth += 1
        recomputed = graph_task() != -1  # by activation checkpointing, within backward
        if self._depth > 1 or recomputed or not (module.training and torch.is_grad_enabled()):
            return
        self._models.setdefault(id(module), module)
        if self._period and not self._left:
            self._at_boundary()

    def _after_forward(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._depth = max(self._depth - 1, 0)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth = 0  # no forward is running, whatever an exception left
        self._optimizers.setdefault(id(optimizer), optimizer)
        if self._period:
            self._left = max(self._left - 1, 0)
            return
        self._steps.append(id(optimizer))
        self._period = period_of(self._steps)
        if self._period:
            session.annotate(self._trained_models(), list(self._optimizers.values()))

    def _at_boundary(self) -> None:
        """A period has ended and the next one begins."""
        if self._profiling():
            self.done = True
            session.end_profile()
            self._leave()
        elif session.current() is not None:  # the script started a session itself
            self.done = True
            self._leave()
        else:
            self._left = self._period
            session.start_profile()

    def _trained_models(self) -> list[nn.Module]:
        """The modules seen that an optimizer trains, those within another one left out."""
        trained = {id(p) for o in self._optimizers.values() for group in o.param_groups for p in group["params"]}
        found = [m for m in self._models.values() if any(id(p) in trained for p in m.parameters())]
        inner = {id(child) for m in found for child in m.modules() if child is not m}
        return [m for m in found if id(m) not in inner]

    def _profiling(self) -> bool:
        running = session.current()
        return running is not None and running.profiling

    def _leave(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
