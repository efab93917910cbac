"""OverlappedSteps: `overlap_optimizer=True`, for all optimizers of the process.

One optimizer after the other is watched for a whole step, then updates its parameters in backward, or is left as it is.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from sentinel.core.errors import SentinelError
from sentinel.core.rules import first_broken, require
from sentinel.core.units import counted
from sentinel.profiler import hooks
from sentinel.profiler.names import parameters_of
from sentinel.session.overlapped_optimizer import OverlappedOptimizer
from sentinel.session.spent_gradient import WITHOUT
from sentinel.session.spent_guard import SpentGuard
from sentinel.session.step_alone import steps_alone
from sentinel.system.progress import say

MOST_OF_OTHERS = 32
"""The watch of an optimizer ends if others take 32 steps and it takes none: its record would grow without bound."""


class OverlappedSteps:
    """From `begin` to `end`. `least_bytes`: smaller parameters keep their update in the step, since their gradients are
    not in frames."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._process = os.getpid()
        self._found: weakref.WeakKeyDictionary[Optimizer, OverlappedOptimizer] = weakref.WeakKeyDictionary()
        self._told: list[OverlappedOptimizer] = []
        self._gone = Counter[str]()  # what is told of those that are gone
        self._watched: OverlappedOptimizer | None = None  # the one whose watch began last
        self._of_others = 0  # steps since a watch began
        self._guard = SpentGuard()

    def check(self, optimizers: Sequence[Optimizer]) -> None:
        """Raises UsageError for one whose updates cannot be told apart, while nothing is changed."""
        owners = _owners(optimizers)
        for optimizer in optimizers:
            why = _unfit(optimizer, owners)
            require((why, f"overlap_optimizer: {type(optimizer).__name__}: {why}", WITHOUT))

    def begin(self) -> None:
        """From now on, whoever makes an optimizer."""
        register_optimizer_step_pre_hook(hooks.Owned(self, self._before))
        register_optimizer_step_post_hook(hooks.Owned(self, self._after))

    def end(self) -> None:
        """All optimizers are as they were. May be called again."""
        hooks.remove_all_of(self, torch_optimizer._global_optimizer_pre_hooks)
        hooks.remove_all_of(self, torch_optimizer._global_optimizer_post_hooks)
        for each in self._told:
            if each.owes:
                say(
                    f"overlap_optimizer: the session ends between backward and step() of {each.name}:"
                    f" the updates of {counted(each.owes, 'parameter')} are made already",
                    wrong=True,
                )
            each.leave()
        self._guard.end()
        self._found = weakref.WeakKeyDictionary()

    def notes(self) -> list[str]:
        """Sentences for the report."""
        gone = [
            told if count == 1 else f"{told} It was the same with {counted(count - 1, 'more optimizer')}."
            for told, count in self._gone.items()
        ]
        nobody = "overlap_optimizer: no optimizer of torch.optim has stepped, so nothing was done in backward."
        return [*gone, *(each.told for each in self._told)] or [nobody]

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        if os.getpid() != self._process or torch.compiler.is_compiling():
            return
        each = self._found.get(optimizer)
        if each is not None and not each.refused:
            each.come_last()

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if os.getpid() != self._process or torch.compiler.is_compiling():
            return
        each = self._found.get(optimizer)
        self._end_what_is_watched_in_vain(each)
        if each is None:
            each = self._found[optimizer] = OverlappedOptimizer(optimizer, self._least_bytes, self._guard)
            self._told.append(each)
            owners = _owners([*self._found])
            for other_optimizer, other in self._found.items():
                if why := _unfit(other_optimizer, owners):
                    other.refuse(why)
                    _say_if_refused(other)
        elif not each.refused and each.overlaps:
            return
        if not each.refused and not (self._watched is not None and self._watched.watching):
            self._of_others = 0
            self._watched = each
            self._guard.pause()
            try:
                each.watch()
            except SentinelError as error:
                each.refuse(str(error))
        _say_if_refused(each)

    def _end_what_is_watched_in_vain(self, stepped: OverlappedOptimizer | None) -> None:
        """The watch of an optimizer that steps no more; of one that is gone, all but what is told of it."""
        if len(self._told) > len(self._found):
            for each in [each for each in self._told if each.gone]:
                self._told.remove(each)
                self._gone[each.told] += 1
                each.leave()
        watched = self._watched
        if watched is not None and watched.watching and watched is not stepped:
            self._of_others += 1
            if self._of_others >= MOST_OF_OTHERS:
                watched.refuse(f"it did not step again before {MOST_OF_OTHERS} steps of others")
                _say_if_refused(watched)


def _say_if_refused(each: OverlappedOptimizer) -> None:
    if each.refused and not each.said:
        each.said = True
        say(each.told, wrong=True)


def _owners(optimizers: Sequence[Optimizer]) -> Counter[int]:
    """How many of `optimizers` have a parameter, by its id."""
    return Counter(number for optimizer in optimizers for number in set(map(id, parameters_of(optimizer))))


def _unfit(optimizer: Optimizer, owners: Counter[int]) -> str:
    """Why its parameters cannot take their updates in backward, as far as that is known before a step; "" where they
    may."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (
        first_broken(
            (
                not steps_alone(optimizer),
                "its update of a parameter may need more than that parameter's own gradient and state",
            ),
            (
                any(owners[id(param)] > 1 for param in parameters_of(optimizer)),
                "another optimizer has some of its parameters too",
            ),
            (
                distributed and torch.distributed.get_world_size() > 1,
                "gradients are exchanged between processes, after autograd has completed them",
            ),
        )
        or ""
    )
