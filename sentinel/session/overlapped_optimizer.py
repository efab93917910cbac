"""OverlappedOptimizer: updates of one optimizer's parameters, each made in backward once its gradient is complete.

What it does in a step, and what may cut in:

    backward   autograd completes a gradient     -> the parameter takes its update, its gradient gives way to a
                                                    SpentGradient: an operator that wants it raises
    step()     all hooks of the user's           -> what is spent is checked, and hidden from the step proper, which
               the step proper                      then updates all others
               the first hook after it           -> the SpentGradients are back until zero_grad()

An update cannot be taken back: what shows only then that it should not have been made raises UsageError, and goes on
doing so until a saved state is loaded into the optimizer, or the session is stopped.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sentinel.core.errors import UsageError
from sentinel.core.units import counted, format_bytes
from sentinel.profiler import hooks
from sentinel.session import written_since
from sentinel.session.gradient_watch import GradientWatch
from sentinel.session.spent_gradient import WITHOUT, SpentGradient
from sentinel.session.spent_guard import SpentGuard
from sentinel.session.step_alone import changed_option, options_of, step_alone

AGAIN = f"load what was saved of model and optimizer, or start again, and {WITHOUT}"


@dataclass(eq=False)
class _Spent:
    """A parameter that took its update in backward, with these options. `left`: as that left it; None until then."""

    parameter: torch.Tensor
    options: dict[str, Any]
    left: written_since.Before | None = None


class OverlappedOptimizer:
    """From `watch` to `leave`. First one step of the optimizer is watched, at its own speed and in its own order.

    `refused`: why nothing is done in backward; "" while that is not known. `spent_bytes`: of gradients that were freed
    in backward in the last step that was. `guard`: records who runs between backward and step.
    """

    def __init__(self, optimizer: Optimizer, least_bytes: int, guard: SpentGuard) -> None:
        self.name = type(optimizer).__name__
        self.refused = ""
        self.said = False  # that it is refused
        self._guard = guard
        self.overlaps = False
        self.spent_bytes = 0
        self._optimizer = weakref.ref(optimizer)
        self._least_bytes = least_bytes
        self._process = os.getpid()
        self._watched: GradientWatch | None = None
        self._ready: set[int] = set()  # ids of parameters that may take their updates in backward
        self._group_of: dict[int, int] = {}  # of each parameter by id: a loaded state makes groups again
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._spent: dict[int, _Spent] = {}  # in this step
        self._stand_ins: dict[int, SpentGradient] = {}
        self._in_step = False
        self._broken = False  # a step, and told so; until a state is loaded

    # ---- one whole step is watched --------------------------------------------------------------------------

    def watch(self) -> None:
        """The step that begins now is watched, if a parameter is worth it. Raises what `GradientWatch.begin` raises."""
        optimizer = self._alive()
        parameters = self._follow_groups(optimizer)
        self.overlaps, self._ready = False, set()
        if not parameters:
            self.refuse(f"none of its parameters that train on the CPU takes {format_bytes(self._least_bytes)} or more")
            return
        self._watched = GradientWatch()  # first: whoever interrupts what follows finds whose recording it is
        self._watched.begin(parameters)
        self._hook(optimizer, parameters)

    @property
    def gone(self) -> bool:
        """Whether nobody has the optimizer any more."""
        return self._optimizer() is None

    @property
    def watching(self) -> bool:
        """Whether a step is watched just now."""
        return self._watched is not None

    def _end_watch(self) -> None:
        assert self._watched is not None
        watched, self._watched = self._watched, None
        refused = watched.end()
        self._ready = watched.ready
        if refused:
            self.refuse(refused)
        else:
            self.overlaps = True

    def refuse(self, why: str) -> None:
        """It is left as it is, for this reason."""
        self.leave()
        self.refused = why

    def leave(self) -> None:
        """The optimizer is as it was. What the present step has done already stays done. May be called again."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.cancel()
        self.overlaps = False
        for reference in self._hooked.values():
            parameter = reference()
            if parameter is not None:
                hooks.remove_all_of(self, parameter._post_accumulate_grad_hooks)
                if type(parameter.grad) is SpentGradient:
                    parameter.grad = None
        optimizer = self._optimizer()
        for table in _TABLES if optimizer is not None else ():
            hooks.remove_all_of(self, getattr(optimizer, table))
        self.drop_spent()
        self._hooked, self._stand_ins = {}, {}

    @property
    def owes(self) -> int:
        """How many parameters were updated in a backward pass that no step has followed yet."""
        return len(self._spent)

    def drop_spent(self) -> None:
        """No step comes after the updates of this backward pass."""
        self._guard.drop([spent.parameter for spent in self._spent.values()])
        self._spent = {}

    def _alive(self) -> Optimizer:
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer

    def _follow_groups(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """The parameters that are worth it; notes which group each is in. It may have come into another one; what is
        new after the watch is left to the step."""
        self._group_of, found = {}, []
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                nbytes = parameter.numel() * parameter.element_size()
                if nbytes >= self._least_bytes and parameter.requires_grad and parameter.device.type == "cpu":
                    self._group_of[id(parameter)] = number
                    found.append(parameter)
        return found

    def _hook(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            if id(parameter) not in self._hooked:
                self._hooked[id(parameter)] = weakref.ref(parameter)
                parameter.register_post_accumulate_grad_hook(hooks.Owned(self, self._complete))
        if not any(isinstance(hook, hooks.Owned) and hook.owner is self for hook in _pre_hooks(optimizer).values()):
            optimizer.register_step_pre_hook(hooks.Owned(self, self._before))
            optimizer.register_step_post_hook(hooks.Owned(self, self._after))
            optimizer.register_state_dict_pre_hook(hooks.Owned(self, self._saved))
            optimizer.register_load_state_dict_pre_hook(hooks.Owned(self, self._loaded))

    # ---- in backward ------------------------------------------------------------------------------------------

    def _complete(self, parameter: torch.Tensor) -> None:
        """Autograd has completed the gradient of `parameter`."""
        optimizer = self._optimizer()
        if os.getpid() != self._process or optimizer is None:
            return
        number, groups = self._group_of.get(id(parameter), -1), optimizer.param_groups
        if not 0 <= number < len(groups):
            return
        group = groups[number]
        if self._watched is not None:
            self._watched.gradient_complete(optimizer, parameter, options_of(optimizer, group))
        elif id(parameter) in self._spent:
            raise self._misused(
                "a second backward pass came before step(), and adds to a gradient that has been used already"
            )
        elif (
            self.overlaps and not self._in_step and id(parameter) in self._ready and self._usable(optimizer, parameter)
        ):
            self._update(optimizer, group, parameter)

    def _usable(self, optimizer: Optimizer, parameter: torch.Tensor) -> bool:
        """Whether the update would be that of the step. What is not usable is left to the step, to no harm."""
        gradient = parameter.grad
        return (
            gradient is not None
            and gradient.layout is torch.strided
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and getattr(optimizer, "grad_scale", None) is None
        )

    def _update(self, optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
        self._guard.after_backward()
        self._spent[id(parameter)] = spent = _Spent(
            parameter, options_of(optimizer, group)
        )  # first: it may be interrupted
        step_alone(optimizer, group, parameter)
        spent.left = written_since.before(optimizer, parameter)
        self._guard.spent(parameter, written_since.state_of(optimizer, parameter))
        stand_in = self._stand_ins.get(id(parameter))
        if stand_in is None or stand_in.size() != parameter.size() or stand_in.dtype != parameter.dtype:
            stand_in = self._stand_ins[id(parameter)] = SpentGradient(parameter)
        parameter.grad = stand_in

    # ---- step() -----------------------------------------------------------------------------------------------

    def come_last(self) -> None:
        """Of the optimizer's hooks before the step proper ours is to be the last, of those after it the first; but for
        hooks of Sentinel's that run the step itself."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        after: Any = optimizer._optimizer_step_post_hooks
        for table, last in ((_pre_hooks(optimizer), True), (after, False)):
            owners = {key: hook.owner for key, hook in table.items() if isinstance(hook, hooks.Owned)}
            ours = [key for key, owner in owners.items() if owner is self]
            others = [key for key, owner in owners.items() if owner is not self]
            for key in (*ours, *others[:: 1 if last else -1]):
                table.move_to_end(key, last=last)

    def _before(self, optimizer: Optimizer, asked: tuple[Any, ...], named: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            return
        if self._watched is not None:
            groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
            now = {number: options_of(optimizer, group) for number, group in groups.items()}
            self._watched.step_begins(optimizer, now)
        self._in_step = True
        self._check(optimizer)
        if len(asked) < 2 and named.get("closure") is None:  # a closure may have gradients anew
            self._check_others()
        for spent in self._spent.values():
            spent.parameter.grad = None

    def _check(self, optimizer: Optimizer) -> None:
        """Raises UsageError where the step would not have made the updates that were made."""
        if self._spent and (touched := self._guard.touched([spent.parameter for spent in self._spent.values()])):
            raise self._misused(f"{touched} between backward and step(), when it had taken its update")
        now = {id(p): group for group in optimizer.param_groups for p in group["params"]} if self._spent else {}
        for number, spent in self._spent.items():
            stand_in = self._stand_ins.get(number)  # None where an update was interrupted
            if stand_in is None or spent.left is None or spent.parameter.grad is not stand_in:
                raise self._misused("a gradient was replaced or removed between backward and step()")
            if number not in now:
                raise self._misused("a parameter left the optimizer between backward and step()")
            if changed := changed_option(spent.options, options_of(optimizer, now[number])):
                raise self._misused(f"{changed!r} was set between backward and step(), after its use")
            if changed := written_since.changed(spent.left, optimizer, spent.parameter):
                raise self._misused(f"{changed} was changed between backward and step(), when it had taken its update")

    def _check_others(self) -> None:
        """Raises UsageError where the step would use what was used before: it was left out, or comes a second time, or
        another state was loaded before it."""
        for number, stand_in in self._stand_ins.items():
            parameter = self._hooked[number]()
            if number not in self._spent and parameter is not None and parameter.grad is stand_in:
                raise self._misused("step() would use gradients that were used in backward already")

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if os.getpid() != self._process:
            return
        self._in_step = False
        if self._spent:
            held = [spent.parameter for spent in self._spent.values()]
            self.spent_bytes = sum(p.numel() * p.element_size() for p in held)
        for number, spent in self._spent.items():
            spent.parameter.grad = self._stand_ins[number]
        self._spent = {}
        if self._watched is not None:
            self._end_watch()
        elif self.overlaps:
            self._follow_groups(optimizer)

    # ---- saved and loaded ---------------------------------------------------------------------------------------

    def _saved(self, _optimizer: Optimizer, *_: Any) -> None:
        if self._spent and os.getpid() == self._process:
            raise self._misused("state_dict() between backward and step(): some of the state is that of after the step")

    def _loaded(self, _optimizer: Optimizer, *_: Any) -> None:
        """Another state is taken. After a step that was broken, what it has done no longer counts. Else its gradients
        stay used: the step that would use them with that state raises."""
        if self._broken or self._guard.in_backward:
            for number, stand_in in self._stand_ins.items():
                parameter = self._hooked[number]()
                if parameter is not None and parameter.grad is stand_in:
                    parameter.grad = None
            for spent in self._spent.values():
                spent.parameter.grad = None
        self._in_step = self._broken = False
        self.drop_spent()

    def _misused(self, what: str) -> UsageError:
        self._broken = True
        return UsageError(f"overlap_optimizer: {self.name}: {what}", AGAIN)

    # ---- told ---------------------------------------------------------------------------------------------------

    @property
    def told(self) -> str:
        """A sentence for the report."""
        if self.refused:
            return f"overlap_optimizer: {self.name} steps after backward, as without it: {self.refused}."
        if not self.overlaps:
            return f"overlap_optimizer: no whole step of {self.name} was watched yet, so it steps after backward."
        updated = counted(len(self._ready), "parameter")
        frees = f"which frees {format_bytes(self.spent_bytes)} of gradients there"
        return f"overlap_optimizer: {self.name} updates {updated} within backward, {frees}."


_TABLES = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_load_state_dict_pre_hooks",
)


def _pre_hooks(optimizer: Optimizer) -> Any:
    return optimizer._optimizer_step_pre_hooks
