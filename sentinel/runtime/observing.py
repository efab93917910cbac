"""Observers: whoever looks on while sessions train. They need nothing of Sentinel but this, and change nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sentinel.core.interrupts import is_interrupt
from sentinel.runtime.process import RUNTIME

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile


class Observer(Protocol):
    """Derive a class from it, and override the methods that you need. They are called on the training thread, between
    operators.

    Steps are reported from the first step on in which a plan is applied, as long as ticks come in the plan's order. The
    time that an observer takes is part of the step, and so are tensors that it makes. An observer that raises an
    Exception is not called again; training goes on. If it calls `sentinel.stop()`, the session ends when the method has
    returned.
    """

    def session_started(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """`start_profile()` has returned. Arguments: the models and optimizers that were given or annotated."""
        del models, optimizers

    def profile_made(self, profile: Profile) -> None:
        """A step was profiled to its end; planning comes next."""
        del profile

    def plan_made(self, plan: Plan) -> None:
        """A plan was made. It is not applied if it is provisional, or no better than the present one."""
        del plan

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """From now on `plan` is applied on `machine`. `ranges(block)`: the (address, nbytes) pieces of a block."""
        del plan, machine, ranges

    def step_began(self) -> None:
        """A step begins. Called again if another plan takes over in its first layer. If the step is cut short, the
        next one begins without `step_ended()`."""
        return

    def layer_began(self, layer: int) -> None:
        """Layer `layer`, from 0 on, begins; due migrations were not waited for yet. The first layer may be 1."""
        del layer

    def step_ended(self) -> None:
        """The last layer of the step has ended."""
        return

    def session_ended(self) -> None:
        """PyTorch's own allocator is back, or the session could not begin. No other session can begin within this
        call. If an interrupt cuts the call short, it is made again."""
        return


class Watch:
    """What one call of `observe` began, until `remove()`. Also a context manager.

    `raised`: what the observer raised, if that is why it is not called any more.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.raised: Exception | None = None

    def remove(self) -> None:
        """Stop calling the observer. Does nothing the second time."""
        with contextlib.suppress(ValueError):
            RUNTIME.watches.remove(self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def observe(observer: Observer) -> Watch:
    """From now on, call `observer` as sessions go on, in this process but not in forked children. Undo with
    `.remove()`, or by the end of a `with`."""
    watch = Watch(observer)
    RUNTIME.watches.append(watch)
    return watch


def tell(event: Callable[[Observer], None]) -> None:
    """`event` with each observer. One that raises costs a sentence on stderr, and is told no more."""
    for watch in tuple(RUNTIME.watches):
        try:
            event(watch.observer)
        except Exception as error:
            if is_interrupt(error):
                raise
            watch.raised = error
            watch.remove()
            who, what = type(watch.observer).__name__, f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # stderr closed, or None
                sys.stderr.write(f"sentinel: {who} gets no more calls in this session, training goes on: {what}\n")


def tell_of_layer(layer: int, *, ended: bool) -> None:
    """`layer` begins. `ended`: the one before was told, and has ended; else the step begins with `layer`."""
    if layer == 0 and ended:
        tell(lambda each: each.step_ended())
    if layer == 0 or not ended:
        tell(lambda each: each.step_began())
    tell(lambda each: each.layer_began(layer))
