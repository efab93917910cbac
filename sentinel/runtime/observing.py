"""Observers: whoever looks on while sessions train. They need nothing of Sentinel but this, and change nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sentinel.runtime.process import RUNTIME

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.profile import Profile


class Observer(Protocol):
    """What sessions tell on the thread that trains, between operators. A class derived from it names what it is told.

    Steps are told from the first one on that a plan is applied in, as long as ticks come in the plan's order. What an
    observer does takes the step's time, and tensors that it makes count among the step's. One that raises an Exception
    is told no more; training goes on. `sentinel.stop()` within one ends the session as soon as the call that told it
    is over.
    """

    def session_started(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """`start_profile()` is done; what is trained, as far as it was given or annotated."""
        del models, optimizers

    def profile_made(self, profile: Profile) -> None:
        """A step was watched to its end; planning comes next."""
        del profile

    def plan_made(self, plan: Plan) -> None:
        """A plan was made; it is not applied where it is provisional, or no better than the one in force."""
        del plan

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """From now on `plan` is carried out on `machine`; `ranges(block)`: the block's (address, nbytes) pieces."""
        del plan, machine, ranges

    def step_began(self) -> None:
        """A step begins; told again where another plan takes over in its first layer. It may be cut short, and then
        another one begins without an end of this one."""
        return

    def layer_began(self, layer: int) -> None:
        """Layer `layer`, from 0 on, begins; what is due by then was not waited for yet. The first one told may be 1."""
        del layer

    def step_ended(self) -> None:
        """The last layer of the step has ended."""
        return

    def session_ended(self) -> None:
        """Stock allocation is back, or the session could not begin. No other one can begin within this call; where an
        interrupt cuts it short, it is told again."""
        return


class Watch:
    """What one call of `observe` began, until `remove()`. Also a context manager.

    `raised`: what the observer raised, if that is why it is told no more.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.raised: Exception | None = None

    def remove(self) -> None:
        """The observer is told no more. Does nothing the second time."""
        with contextlib.suppress(ValueError):
            RUNTIME.watches.remove(self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def observe(observer: Observer) -> Watch:
    """Tell `observer` what sessions do from now on, in this process and not in forked children. Undo with `.remove()`,
    or by the end of a `with`."""
    watch = Watch(observer)
    RUNTIME.watches.append(watch)
    return watch


def tell(event: Callable[[Observer], None]) -> None:
    """`event` with each observer. One that raises costs a sentence on stderr, and is told no more."""
    for watch in tuple(RUNTIME.watches):
        try:
            event(watch.observer)
        except Exception as error:
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
