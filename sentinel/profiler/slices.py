"""An optimizer's step in slices of its parameters, a tick after each, bit-identical to the whole step.

The slices run by the optimizer's own step over `param_groups` cut short. They run inside the last step hook
before the step proper, so hooks and a closure run once and see whole groups; the step proper then finds
nothing left to do. Groups are restored before any hook that follows, and in `finally`.
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
        groups = _Groups(optimizer)
        try:
            try:
                groups.tick_between(functools.partial(sink.tick, self.name, "optimizer", "annotate"))
                result = call(*args, **kwargs)
            finally:
                groups.end()
        finally:  # again, lest an interrupt within the first leave groups cut short
            groups.end()
        sink.step_boundary()
        return result


class _Groups:
    """The parameter lists of an optimizer, cut in place, since schedulers and hooks hold the groups themselves.

    From `tick_between` to `end` a step of the optimizer runs slice by slice.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = optimizer.param_groups
        self._held: list[list[torch.Tensor]] | None = None

    def tick_between(self, tick: Callable[[], None]) -> None:
        """The next step of the optimizer runs in slices, with a tick after each."""

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
            passed = _evaluate_closure(args, kwargs)
            self._held = [group["params"] for group in self._groups]
            inner = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]  # without the hooks
            with without_function_modes():
                cut = slices(optimizer)
            for parts in cut:
                self._cut(parts)
                inner(optimizer)
                tick()
            self._cut([])
            return passed

        # registered for this step only: so the first comes after, the second before every other hook
        self._optimizer.register_step_pre_hook(hooks.Owned(self, before))
        last = self._optimizer.register_step_post_hook(hooks.Owned(self, lambda *_: self._restore()))
        self._optimizer._optimizer_step_post_hooks.move_to_end(last.id, last=False)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Groups are whole, and no hook of ours is left; also after an `end` that was cut short."""
        self._restore()
        for table in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            hooks.remove_all_of(self, getattr(self._optimizer, table))

    def _cut(self, parts: list[Part]) -> None:
        assert self._held is not None
        for group in self._groups:
            group["params"] = []
        for index, start, stop in parts:
            self._groups[index]["params"] = self._held[index][start:stop]

    def _restore(self) -> None:
        if self._held is not None:
            for group, params in zip(self._groups, self._held, strict=True):
                group["params"] = params
            self._held = None


def _evaluate_closure(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Run a closure once, before the first slice; the step proper gets what it returned."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return args[:1], {**kwargs, "closure": lambda: loss}
