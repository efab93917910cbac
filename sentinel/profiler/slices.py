"""An optimizer's step in slices of its parameters, a tick after each, bit-identical to the whole step.

The slices run by the optimizer's own step, on a twin that shares its state and has a part of its parameters. They run
inside the last step hook before the step proper, so hooks and a closure run once; the step proper then runs on a twin
that has none. The optimizer's own groups are whole all the time: whoever looks at them in mid-step, such as a signal
handler that saves a checkpoint, finds what is there without Sentinel.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop

from sentinel.profiler import hooks
from sentinel.profiler.unobserved import without_function_modes
from sentinel.runtime import RUNTIME

SLICES = 32
"""A slice holds a 32nd of the parameters' bytes, or one large parameter."""

_ELEMENTWISE: tuple[type[Optimizer], ...] = (SGD, Adam, RMSprop, Adagrad)  # AdamW is an Adam
"""Each parameter's step needs its own gradient and state only, so any order of slices gives the same bits."""

Part = tuple[int, int, int]
"""Parameters [start, stop) of a group: (group, start, stop)."""


def slices(optimizer: Optimizer, count: int = SLICES) -> list[list[Part]]:
    """The parameters of `optimizer` in order, cut where each 1/`count` of their bytes is passed."""
    sizes = [[p.numel() * p.element_size() for p in group["params"]] for group in optimizer.param_groups]
    total = sum(map(sum, sizes))
    cut: list[list[Part]] = []
    parts: list[Part] = []
    passed = closed = 0
    for index, group in enumerate(sizes):
        start = 0
        for stop, nbytes in enumerate(group, 1):
            passed += nbytes
            if passed * count >= (closed + 1) * total:
                cut.append([*parts, (index, start, stop)])
                parts, start = [], stop
                closed = passed * count // total if total else closed
        if start < len(group):
            parts.append((index, start, len(group)))
    if parts:  # what holds no bytes at all
        cut.append(parts)
    return cut


def sliceable(optimizer: Optimizer) -> bool:
    """Whether torch's own elementwise code runs the step: no subclass has put its own in its place."""
    return runs_own_code(optimizer, _ELEMENTWISE)


def runs_own_code(optimizer: Optimizer, kinds: tuple[type[Optimizer], ...]) -> bool:
    """Whether it is one of `kinds` of torch.optim, whose own code runs the step, and no gradient goes through that."""
    kind = type(optimizer)
    if optimizer.defaults.get("differentiable"):
        return False
    for known in kinds:
        if issubclass(kind, known):
            return all(_code(getattr(kind, name)) is _code(getattr(known, name)) for name in ("step", "_init_group"))
    return False


def _code(function: Callable[..., Any]) -> object:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


class SlicedStep:
    """Takes the place of `optimizer.step` until `remove()`. Without a session the step is the optimizer's own.

    An optimizer that is not known to be elementwise steps as a whole and ticks once.
    """

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        self.name = name
        self._optimizer = weakref.ref(optimizer)
        self._before = optimizer.__dict__.get("step")  # a scheduler's wrapper, if it came first
        self._active = True
        raw = type(optimizer).step
        before = self._before

        @functools.wraps(raw)
        def plain(self_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return raw(self_, *args, **kwargs) if before is None else before(*args, **kwargs)

        @functools.wraps(raw)
        def method(self_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # slices would be graphs of their own, with other bits than the whole's
                return plain(self_, *args, **kwargs)
            if RUNTIME.finder is not None and self._active:  # it may begin a session
                RUNTIME.finder.before_step(args[0] if args else kwargs.get("closure"))
            if RUNTIME.sink is None or not self._active:
                return plain(self_, *args, **kwargs)
            return self._run(self_, functools.partial(plain, self_), args, kwargs)

        reference = self._optimizer  # not the optimizer: a cycle would keep its state until a collection

        @functools.wraps(raw)
        def step(*args: Any, **kwargs: Any) -> Any:
            alive = reference()
            assert alive is not None
            return method(alive, *args, **kwargs)

        step.__func__ = method  # type: ignore[attr-defined]  # schedulers wrap what a bound method wraps
        if hasattr(before, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        self._step = step
        optimizer.step = step  # type: ignore[method-assign]

    def remove(self) -> None:
        """The optimizer's step is its own again. Where a scheduler has wrapped ours since, ours steps aside."""
        self._active = False
        optimizer = self._optimizer()
        if optimizer is not None and optimizer.__dict__.get("step") is self._step:
            if self._before is None:
                del optimizer.__dict__["step"]
            else:
                optimizer.step = self._before  # type: ignore[method-assign]

    def _run(self, optimizer: Optimizer, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        sink = RUNTIME.sink
        assert sink is not None
        if not sliceable(optimizer):
            result = call(*args, **kwargs)
            sink.tick(self.name, "optimizer", "annotate")
            sink.step_boundary()
            return result
        in_slices = hooks.Owned(
            self, functools.partial(_in_slices, functools.partial(sink.tick, self.name, "optimizer", "annotate"))
        )
        try:
            try:
                optimizer.register_step_pre_hook(in_slices)  # for this step only: so it comes after every other hook
                result = call(*args, **kwargs)
            finally:
                hooks.remove_all_of(self, optimizer._optimizer_step_pre_hooks)
        finally:  # again, lest an interrupt within the first leave it
            hooks.remove_all_of(self, optimizer._optimizer_step_pre_hooks)
        sink.step_boundary()
        return result


def _in_slices(tick: Callable[[], None], optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Before the step proper: its work in slices, a tick after each. The step proper gets what is left, which is
    nothing, and what a closure returned."""
    closure, loss = args[1] if len(args) > 1 else kwargs.get("closure"), None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    with without_function_modes():
        cut = slices(optimizer)
    inner = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]  # without the hooks
    for parts in cut:
        inner(twin_of(optimizer, parts))
        tick()
    nothing = twin_of(optimizer, [])
    return (nothing,), kwargs if closure is None else {**kwargs, "closure": lambda: loss}


def twin_of(optimizer: Optimizer, parts: list[Part]) -> Optimizer:
    """One of its kind that has these parameters alone, in groups of the same options, and shares its state."""
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__.pop("step", None)
    groups = optimizer.param_groups
    twin.param_groups = [{**groups[i], "params": groups[i]["params"][start:stop]} for i, start, stop in parts]
    return twin  # type: ignore[no-any-return]
