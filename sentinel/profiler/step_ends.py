"""Where a training step ends, as optimizers tell: after the last one of those that step in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from sentinel.profiler import hooks
from sentinel.profiler.names import parameters_of
from sentinel.profiler.step_period import OptimizerStep, looked_at, period_of
from sentinel.profiler.unobserved import without_function_modes

LEAST_IN_A_ROW = 8
"""Another thread trains now if it took 8 optimizer steps, or those of two training steps, and the thread that trained
before took none among them: two that train side by side take turns sooner."""


class StepEnds:
    """Between `watch` and `leave`, `ended` is called after each training step, on the thread that trains: the first
    whose optimizer steps, until another one steps in its place. A training step is a period of optimizer steps
    (step_period.py): what is not known yet, or is broken by an optimizer that steps out of turn, is found again, and
    nothing is told meanwhile. Both may be called again."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._watches = False
        self._thread = 0
        self._other, self._in_a_row = 0, 0  # a thread that does not train, and its steps since the last of another
        self._steps: list[OptimizerStep] = []
        self._period: list[int] = []
        self._done = 0

    def watch(self) -> None:
        """From now on, of all optimizers of the process."""
        if not self._watches:
            self._watches = True
            register_optimizer_step_post_hook(hooks.Owned(self, self._after))

    def leave(self) -> None:
        """No more, and nothing is kept of them."""
        self._watches = False
        hooks.remove_all_of(self, torch_optimizer._global_optimizer_post_hooks)
        self._follow(0)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._watches or not self._trains(threading.get_ident()):  # it left while a step was under way
            return
        if not self._expected(optimizer):
            self._look(optimizer)
            return
        self._done = (self._done + 1) % len(self._period)
        if self._done == 0:
            self._ended()

    def _trains(self, thread: int) -> bool:
        """Whether `thread`, whose optimizer has stepped, is the one that trains."""
        if self._thread in (0, thread):
            self._thread, self._in_a_row = thread, 0
            return True
        self._in_a_row = self._in_a_row + 1 if thread == self._other else 1
        self._other = thread
        if self._in_a_row < max(LEAST_IN_A_ROW, 2 * len(self._period or self._steps)):
            return False
        self._follow(thread)
        return True

    def _follow(self, thread: int) -> None:
        self._thread, self._in_a_row = thread, 0
        self._steps, self._period = [], []

    def _expected(self, optimizer: Optimizer) -> bool:
        return bool(self._period) and self._period[self._done] == id(optimizer)

    def _look(self, optimizer: Optimizer) -> None:
        if self._period:
            self._steps, self._period = [], []
        with without_function_modes():
            trained = frozenset(id(p) for p in parameters_of(optimizer) if p.grad is not None)
        self._steps.append(OptimizerStep(id(optimizer), trained))
        del self._steps[: -looked_at(len({step.optimizer for step in self._steps}))]
        if length := period_of(self._steps):
            self._period = [step.optimizer for step in self._steps[-length:]]
            self._done = 0
            self._ended()
