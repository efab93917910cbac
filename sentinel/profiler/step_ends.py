"""Where a training step ends, as optimizers tell: after the last one of those that step in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sentinel.profiler.step_period import MOST, OptimizerStep, period_of


class StepEnds:
    """Between `watch` and `leave`, `ended` is called after each training step, on the thread whose optimizer was the
    first to step. A training step is a period of optimizer steps (step_period.py): what is not known yet, or is broken
    by an optimizer that steps out of turn, is found anew, and nothing is told meanwhile. Both may be called again."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._hook: RemovableHandle | None = None
        self._thread = 0
        self._steps: list[OptimizerStep] = []
        self._period: list[int] = []
        self._done = 0

    def watch(self) -> None:
        """From now on, of all optimizers of the process."""
        if self._hook is None:
            self._hook = register_optimizer_step_post_hook(self._after)

    def leave(self) -> None:
        """No more, and nothing is kept of them."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._steps, self._period = [], []

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        thread = threading.get_ident()
        self._thread = self._thread or thread
        if thread != self._thread or self._hook is None:  # an interrupt came before the hook was known
            return
        if not self._expected(optimizer):
            self._look(optimizer)
            return
        self._done = (self._done + 1) % len(self._period)
        if self._done == 0:
            self._ended()

    def _expected(self, optimizer: Optimizer) -> bool:
        return bool(self._period) and self._period[self._done] == id(optimizer)

    def _look(self, optimizer: Optimizer) -> None:
        if self._period:
            self._steps, self._period = [], []
        trained = frozenset(id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        self._steps.append(OptimizerStep(id(optimizer), trained))
        del self._steps[:-MOST]
        if length := period_of(self._steps):
            self._period = [step.optimizer for step in self._steps[-length:]]
            self._done = 0
            self._ended()
