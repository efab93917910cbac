"""GradientWatch: one step of an optimizer, looked at for whoever touches gradients and parameters before its time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from sentinel.core.interrupts import is_interrupt
from sentinel.core.rules import first_broken
from sentinel.profiler import operators
from sentinel.session import written_since
from sentinel.session.step_alone import changed_option

EVERYTHING = 1 << 62
"""No event comes after it."""
BEFORE = "between backward and step"


@dataclass
class _Touchable:
    """Bytes that no operator may touch from event `begin` to event `end` of the recording."""

    what: str
    when: str
    address: int
    nbytes: int
    begin: int
    end: int = EVERYTHING


class _Ready(NamedTuple):
    """A parameter whose gradient is complete, its options then, and how it was."""

    parameter: torch.Tensor
    options: dict[str, Any]
    before: written_since.Before


class GradientWatch:
    """From `begin` to `end`, from the end of one step of an optimizer to the end of the next.

    The operators of this thread are recorded.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._whole = False  # whether nothing interrupted its begin
        self._others = False  # another thread ran a backward of these parameters
        self._twice = False
        self._in_step = False
        self._within = ""  # why the gradients are of no use before the step
        self._changed = ""  # a parameter, or its state: which
        self._begun = EVERYTHING  # the first event of the step proper
        self._ready: dict[int, _Ready] = {}  # parameters, by id
        self._spans: list[_Touchable] = []

    def begin(self, parameters: list[torch.Tensor]) -> None:
        """From now on. Raises what `operators.start` raises."""
        operators.start(self)
        for parameter in parameters:  # their gradients of the step before
            self._gradient(parameter, "after the step")
        self._whole = True

    @property
    def ready(self) -> set[int]:
        """Ids of the parameters whose gradients were complete before the step."""
        return set(self._ready)

    def gradient_complete(self, optimizer: Optimizer, parameter: torch.Tensor, options: dict[str, Any]) -> None:
        """A backward has added to the gradient of `parameter`, which autograd does once in it."""
        self._others |= threading.get_ident() != self._thread
        if self._in_step:
            self._within = "its gradients are computed within step(), by a closure"
        if torch.is_grad_enabled():
            self._within = "its gradients have gradients themselves (create_graph=True)"
        if torch.is_autocast_enabled("cpu"):
            self._within = "backward runs within autocast, which the step may not be in"
        self._twice |= id(parameter) in self._ready
        self._ready[id(parameter)] = _Ready(parameter, options, written_since.before(optimizer, parameter))
        self._gradient(parameter, BEFORE)
        begin = operators.events_so_far()
        held = [("a parameter", parameter)]
        held += [("optimizer state", each) for each in written_since.state_of(optimizer, parameter)]
        for what, tensor in held:
            storage = tensor.untyped_storage()
            self._spans.append(_Touchable(what, BEFORE, storage.data_ptr(), storage.nbytes(), begin))

    def step_begins(self, optimizer: Optimizer, now: dict[int, dict[str, Any]]) -> None:
        """Its own code is about to run. `now`: the options of each parameter, by its id."""
        self._in_step = True
        self._begun = operators.events_so_far()
        for number, ready in self._ready.items():
            if _numpy_had(ready.parameter.grad):
                self._within = f"numpy has the bytes of a gradient {BEFORE}"
            elif changed := changed_option(ready.options, now.get(number, {})):
                self._within = f"its option {changed!r} is set between backward and step"
            elif changed := written_since.changed(ready.before, optimizer, ready.parameter):
                self._changed = f"{changed} is changed between backward and step"

    def end(self) -> str:
        """Record no more. Why parameters may not take their updates in backward; "" if they may."""
        operators.stop(self)
        try:
            log = operators.log()
        except Exception as error:
            if is_interrupt(error):
                raise
            return f"its operators could not be recorded ({error})"
        return first_broken(
            (not self._whole, "something interrupted its watch"),
            (self._others, "another thread computes its gradients"),
            (self._within, self._within),
            (self._twice, "more than one backward pass adds to a gradient before the step"),
            (not self._ready, "no backward pass was seen before its step"),
        ) or next(self._touched(log), self._changed)  # who has touched it says more than that it has changed

    def cancel(self) -> None:
        """Record no more, and forget what was recorded."""
        operators.stop(self)
        operators.forget()

    def _gradient(self, parameter: torch.Tensor, when: str) -> None:
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            return
        storage = gradient.untyped_storage()
        span = _Touchable("a gradient", when, storage.data_ptr(), storage.nbytes(), operators.events_so_far())
        weakref.finalize(gradient, partial(_ended, span)).atexit = False
        self._spans.append(span)

    def _touched(self, log: operators.OperatorLog) -> Iterator[str]:
        """A sentence for each operator that should not have."""
        at = np.arange(len(log.events))
        mine = np.isin(log.events["kind"], (operators.READ, operators.WRITE))
        mine &= at < self._begun
        order = np.argsort(log.events["address"], kind="stable")
        order = order[mine[order]]
        addresses = log.events["address"][order].astype(np.int64)
        for span in self._spans:
            begin, end = np.searchsorted(addresses, (span.address, span.address + max(span.nbytes, 1)))
            for event in _between(order[begin:end], span.begin, min(span.end, self._begun)):
                row = log.events[event]
                verb = "writes" if row["kind"] == operators.WRITE else "reads"
                yield f"{log.ops[int(row['op'])]} {verb} {span.what} {span.when}"


def _numpy_had(gradient: torch.Tensor | None) -> bool:
    """Whether an array was ever made of its bytes: no operator tells of that, but the storage may grow no more."""
    return gradient is not None and gradient.layout is torch.strided and not gradient.untyped_storage().resizable()


def _between(events: NDArray[Any], begin: int, end: int) -> list[int]:
    return [event for event in np.sort(events).tolist() if begin <= event < end]


def _ended(span: _Touchable) -> None:
    span.end = operators.events_so_far()
