"""Finds the training loop of an unmodified script by PyTorch's global hooks, annotates it, and profiles one step.

A step is one period of optimizer steps (profiler/step_period.py): `[a]` for one optimizer, `[d, g]` for a pair that
takes turns, `[d, d, g]` where one steps more often. When a period has been seen twice, the outermost modules that ran
forward with gradients are annotated; the next period is profiled. It begins and ends where the first forward after
an optimizer's step begins, or the step within which that forward runs, as a closure. Only one thread is watched: that
of the first optimizer step.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sentinel import session
from sentinel.core.errors import CapabilityError
from sentinel.core.interrupts import is_interrupt
from sentinel.core.units import format_bytes
from sentinel.migration.frozen_objects import all_objects
from sentinel.profiler import module_hooks
from sentinel.profiler.backward import graph_task
from sentinel.profiler.names import parameters_of
from sentinel.profiler.step_period import LIMIT, MOST, PATIENCE, OptimizerStep, looked_at, period_of
from sentinel.profiler.unobserved import without_function_modes
from sentinel.runtime import RUNTIME
from sentinel.session.session import Session
from sentinel.system import limits
from sentinel.system.progress import say


class Follower:
    """Watches for a training loop from now on: counts optimizer steps, and calls `annotate`, `start_profile` and
    `end_profile` in the user's place. A script that annotates is given WAIT periods to begin a session itself; whenever
    it does, what was begun here is undone. `request`: what the session is asked for; where there is one, somebody asked
    for it in the program itself, and annotations are no sign that it begins another.

    `session`: the one that was begun. `done`: the loop was found and one of its steps profiled, or the script did it
    itself. `failed`: what went wrong. Whatever it is, it is said in one sentence, and the script trains on as if nobody
    watched.
    """

    def __init__(self, request: session.Request | None = None) -> None:
        self._request = request
        self.done = False
        self.failed = ""
        self._thread = threading.get_ident()
        self._depth = 0
        self._ran_forward = False  # since the last step of an optimizer
        self._models: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # by identity, in training mode
        self._in_eval_mode: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._trained_in_eval_mode: WeakSet[nn.Module] = WeakSet()
        self._last_forward: nn.Module | None = None  # until an optimizer steps: a wrapper may live for this step only
        self._annotated: list[nn.Module] = []  # until the watch ends: a wrapper may have no other owner
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # with a number for its steps
        self._numbers = itertools.count()  # no identity, which another one may get when it is gone
        self._steps: list[OptimizerStep] = []
        self._all_optimizers = functools.cache(_alive)  # looked for once, when the first period shows
        self._period = self._left = 0
        self._annotation: session.Annotation | None = None
        self._before = session.current()  # it is over
        self.session: Session | None = None
        self._begun: object = None  # it, or what stands in for a session where stock training is watched
        self._script_annotates = False
        RUNTIME.finder = self
        RUNTIME.not_inherited.add(self)
        module_hooks.ignore_warnings()
        self._hooks: list[RemovableHandle] = [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def finish(self) -> None:
        """The script has ended: a profiled step that no further step followed is ended here."""
        try:
            if not self.done and self._period and not self._left and session.is_profiling():
                self.done = True
                self._guard(session.end_profile)
        finally:
            if RUNTIME.finder is self:
                RUNTIME.finder = None
            self.leave()

    def forked(self) -> None:
        """See NotInherited: a forked child trains on as if nobody watched."""
        self.done = True

    def script_annotates(self) -> None:
        """See Finder. Where there are annotations of ours, its own take their place."""
        if self._request is not None and self._annotation is not None:
            self._annotation.remove()
        elif self._request is None:
            self._script_annotates = True
            if self._annotation is not None:
                self.give_way()

    def give_way(self) -> None:
        """See Finder. The hooks go with the next forward: torch may be going through them."""
        self.done = True
        if RUNTIME.finder is self:
            RUNTIME.finder = None
        if self._begun is not None and RUNTIME.sink is self._begun:
            self._guard(session.stop)
        if self._annotation is not None:
            self._annotation.remove()
        self._forget()

    def _before_forward(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():  # or all this would be part of the graph, and break it
            return
        if self.failed or self.done:
            self.leave()  # here and not where it failed: torch may have been going through these hooks
            return
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        recomputed = graph_task() != -1  # by activation checkpointing, within backward
        if self._depth > 1 or recomputed or not torch.is_grad_enabled():
            return
        if not module.training and module not in self._trained_in_eval_mode:  # validation, or what is to be found
            if not self._period:
                self._in_eval_mode.setdefault(id(module), module)
            return
        self._models.setdefault(id(module), module)
        if self._annotation is None:
            self._last_forward = module
        self._ran_forward = True
        if self._period and not self._left:
            self._guard(self._at_boundary)

    def _after_forward(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == self._thread:
            self._depth = max(self._depth - 1, 0)

    def before_step(self, closure: object) -> None:
        """See Finder. Lightning runs forward and backward as a closure within the step. A period that began with that
        forward would lack the optimizer's part of it."""
        if torch.compiler.is_compiling() or self.failed or self.done or threading.get_ident() != self._thread:
            return
        if closure is not None and self._period and not (self._left or self._ran_forward):
            self._guard(self._at_boundary)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.failed or self.done:
            return
        if threading.get_ident() != self._thread:
            if self._steps or self._period:
                return
            self._thread = threading.get_ident()  # it is this one that trains
            self._models, self._in_eval_mode = WeakValueDictionary(), WeakValueDictionary()
        self._depth, self._ran_forward = 0, False  # no forward is running, whatever an exception left
        self._guard(lambda: self._stepped(optimizer))

    def _stepped(self, optimizer: Optimizer) -> None:
        number = self._optimizers.setdefault(optimizer, next(self._numbers))
        if self._period:
            self._left = max(self._left - 1, 0)
            return
        trained = frozenset(id(param) for param in parameters_of(optimizer) if param.grad is not None)
        self._steps.append(OptimizerStep(number, trained))
        looked = looked_at(len(self._optimizers))
        del self._steps[: -looked * KEPT]
        if self._somebody_began():  # not by `sentinel.start_profile`, which would have told
            self.done = True
            return
        if len(self._optimizers) > MOST // 2:  # beyond LIMIT: it would be looked for in vain, at each step
            self.done = True
            return
        self._period = period_of(self._steps[-looked:], self._trainable)
        if self._script_annotates and len(self._steps) < WAIT * self._period:
            self._period = 0
        if self._period:
            self._trained_in_eval_mode.update(self._only_in_eval_mode())
        if self._period and not self._script_annotates:
            self._annotated = self._trained_models()
            self._annotation = session.annotate(self._annotated, list(self._optimizers))
        self._last_forward = None

    def _at_boundary(self) -> None:
        """A period has ended and the next one begins."""
        if session.is_profiling():
            self.done = True
            session.end_profile()
            self.leave()
        elif self._somebody_began():  # the script itself
            self.done = True
            self.leave()
        else:
            self._left = self._period
            require_room()
            session.start_profile(request=self._request)
            self.session, self._begun = session.current(), RUNTIME.sink

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            with without_function_modes():
                call()
        except Exception as error:
            if is_interrupt(error):
                raise
            self.failed = str(error) or type(error).__name__
            say(f"nothing is placed, training goes on: {self.failed}", wrong=True)

    def _trainable(self) -> set[int]:
        """Parameters of all optimizers that there are, also of those that have not stepped yet."""
        optimizers = (*self._all_optimizers(), *self._optimizers)
        return {id(param) for optimizer in optimizers for param in parameters_of(optimizer) if param.requires_grad}

    def _trained_models(self) -> list[nn.Module]:
        """The modules seen that an optimizer trains; without those within another one, and those that are annotated or
        have a part that is."""
        trained = {id(param) for optimizer in self._optimizers for param in parameters_of(optimizer)}
        seen = (*self._models.values(), *self._trained_in_eval_mode)
        found = [m for m in seen if any(id(p) in trained for p in m.parameters())]
        inner = {id(child) for m in found for child in m.modules() if child is not m}
        annotated = set(map(id, RUNTIME.models.in_order()))  # by the program, with blocks of its choice
        found = [m for m in found if annotated.isdisjoint(map(id, m.modules()))]
        return [m for m in found if id(m) not in inner]

    def _only_in_eval_mode(self) -> list[nn.Module]:
        """Of the modules seen in eval mode, as `from_pretrained` leaves them, those with parameters that an optimizer
        updates and that no module in training mode has: with one, the forward in eval mode is its validation."""
        optimizers = tuple(self._optimizers)
        updated = {id(p) for optimizer in optimizers for p in parameters_of(optimizer) if p.requires_grad}
        updated -= {id(p) for m in self._models.values() for p in m.parameters()}
        return [m for m in self._in_eval_mode.values() if any(id(p) in updated for p in m.parameters())]

    def _somebody_began(self) -> bool:
        return session.current() not in (None, self._before)

    def leave(self) -> None:
        """Watch no more. Does nothing the second time."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._forget()

    def _forget(self) -> None:
        self._models, self._optimizers, self._steps = WeakValueDictionary(), WeakKeyDictionary(), []
        self._in_eval_mode, self._trained_in_eval_mode = WeakValueDictionary(), WeakSet()
        self._last_forward, self._annotated = None, []
        self._all_optimizers = functools.cache(_alive)


NO_LOOP = (
    "no training loop was found: Sentinel looks for forward passes with gradients, each followed by a step of a"
    f" torch.optim optimizer, three times in one thread, or {PATIENCE} times where an optimizer has parameters that get"
    f" no gradient, such as an unused pooler; a training step has {LIMIT}; where the script annotates its model, eight"
    " steps are left to it. Hidden are forward passes in processes that the script starts, by model.forward() in place"
    " of model(), by model.compile(), and by torch.compile of a function that calls the model"
)
"""What was looked for, and how it may hide."""

CUT_SHORT = "ended within the profiled step"
"""What a loop did of which a step began to be profiled, and none was."""

WAIT = 8
"""A script that annotates its model, and begins no session in 8 steps, is taken to leave that to the command line."""

KEPT = WAIT // 2
"""4 times the optimizer steps that are looked at are remembered: 8 of the longest period."""

LEAST_ROOM_BYTES = 384 << 20
"""What a session may take beyond the job's own memory until a plan is applied: the planner's libraries, copies of at
most 64 MiB at a time, and what is kept ready of the memory that a tracker watches."""


def require_room() -> None:
    """Raises CapabilityError where a memory cgroup leaves too little: beyond it the kernel would end the job. Near
    memory.high, which slows it down, groups may live for good."""
    room = limits.room_bytes(hard=True)
    if room is not None and room < LEAST_ROOM_BYTES:
        raise CapabilityError(
            "profiling a step",
            f"the memory cgroup has {format_bytes(room)} left, a session may take {format_bytes(LEAST_ROOM_BYTES)}",
            "give the container more memory",
        )


def _alive() -> WeakSet[Optimizer]:
    """Every optimizer that was made and is in use somewhere."""
    return WeakSet([found for found in all_objects() if issubclass(type(found), Optimizer) and _has_params(found)])


def _has_params(optimizer: Optimizer) -> bool:
    """Of a subclass, or of one whose making failed, even to ask may fail."""
    try:
        return bool(optimizer.param_groups)
    except Exception as error:
        if is_interrupt(error):
            raise
        return False
