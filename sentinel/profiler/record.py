"""StepRecorder: from a running training step to a Trace."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.false_sharing import FalseSharing
from sentinel.core.rules import holding
from sentinel.core.trace import OP, PAGE_RUN_DTYPE, LayerId, Quality, TensorInfo, Trace
from sentinel.profiler import annotate, hooks, names, operators
from sentinel.profiler.malloc_layout import stock_sharing
from sentinel.profiler.merge import GradientSeen, Known, Step, merge
from sentinel.profiler.pages.protocol import PageSamples
from sentinel.profiler.unobserved import unobserved, without_function_modes
from sentinel.runtime import RUNTIME
from sentinel.system import native

BLIND_TO = (
    "memory that operators use without naming a tensor (scratch space, oneDNN's own buffers)",
    "which bytes within an operand's extent were touched",
)


class StepRecorder:
    """Records one step: `start`, a `tick` at the end of each layer, then `finish` or `abandon`.

    All on the thread that trains. The step may begin anywhere in the ring: the first tick tells where.
    """

    def __init__(self) -> None:
        self._ticks: list[tuple[int, int, int, int]] = []  # seq, layer that ended, how long it took, when
        self._gradients_seen: list[GradientSeen] = []
        self._watched: list[nn.Parameter] = []  # those that may have a hook of ours
        self._known: list[Known] = []
        self._now: Callable[[], int] = native.quick().sn_now_ns
        self._next_seq: Callable[[], int] = native.quick().sn_next_seq
        self._first_seq = self._last_seq = self._began_ns = self._layer_began_ns = self._ended_ns = 0

    def start(
        self,
        models: Sequence[nn.Module] | None = None,
        optimizers: Sequence[Optimizer] | None = None,
        numbers: names.Numbers | None = None,
    ) -> None:
        """Begin at a step boundary. Without `models` and `optimizers`, those that are annotated give the names.
        `numbers`: see `names.persistent_tensors`.

        Raises UsageError if another step is being recorded.
        """
        annotated = annotate.annotated()
        models = annotated[0] if models is None else models
        optimizers = annotated[1] if optimizers is None else optimizers
        _operator_ns()  # measured once, before the step
        held = names.persistent_tensors(models, optimizers, numbers=numbers)
        self._known = _known(held, names.aliases(models, optimizers, numbers=numbers))
        operators.start(self)
        RUNTIME.not_inherited.add(self)
        params = names.parameters(models, optimizers, numbers)
        trained = [(name, p) for name, p in params if p.requires_grad and p.is_leaf and not is_lazy(p)]
        self._watched = [param for _, param in trained]
        for name, param in trained:
            watch = hooks.Owned(self, functools.partial(self._see_gradient, name))
            param.register_post_accumulate_grad_hook(watch)
        self._first_seq = self._next_seq()
        self._began_ns = self._layer_began_ns = self._now()

    def tick(self, layer: int) -> None:
        """Layer `layer` has ended, counted from the ring's first."""
        now = self._now()
        self._ticks.append((self._next_seq(), layer, now - self._layer_began_ns, now))
        self._layer_began_ns = now

    def resume(self) -> None:
        """What was done since `tick` was the tracker's, for the layer that ended; the next one's time begins now."""
        now = self._now()
        if self._ticks:
            seq, layer, ns, when = self._ticks[-1]
            self._ticks[-1] = seq, layer, ns + now - self._layer_began_ns, when
        self._layer_began_ns = now

    def stop(self) -> None:
        """The step ends here: what is done from now on is not its. `finish` does it too, if it was not done."""
        if self._began_ns and not self._ended_ns:
            self._ended_ns, self._last_seq = self._now(), self._next_seq()
        operators.stop(self)
        for param in self._watched:
            hooks.remove_all_of(self, param._post_accumulate_grad_hooks)
        self._watched = []

    def finish(
        self,
        events: NDArray[Any],
        ring: Sequence[LayerId],
        persistent: Sequence[names.Named],
        samples: PageSamples | None = None,
    ) -> Trace:
        """End the step. `events`: the allocation log, by seq. `persistent`: what lives across steps now. The runs of
        `samples` become the trace's, and are no copy.

        Raises UsageError if the ticks were not those of one round of `ring`.
        """
        self.stop()
        layers = [layer for _, layer, _, _ in self._ticks]
        if not layers or layers != [(layers[0] + i) % len(ring) for i in range(len(ring))]:
            raise UsageError(f"{len(layers)} ticks are not one round of a ring of {len(ring)}", "record a whole step")
        layer_ns = np.zeros(len(ring), np.int64)
        for _, layer, ns, _ in self._ticks:
            layer_ns[layer] += ns
        layer_ns[layers[0]] += self._ended_ns - self._layer_began_ns
        log = operators.log()
        step = Step(
            first_seq=self._first_seq,
            last_seq=self._last_seq,
            began_ns=self._began_ns,
            tick_seqs=np.array([tick[0] for tick in self._ticks], np.uint64),
            tick_ns=np.array([tick[3] for tick in self._ticks], np.int64),
            first_layer=layers[0],
            ring=tuple(ring),
            before=tuple(self._known),
            after=tuple(_known(persistent, {})),
            gradients_seen=tuple(self._gradients_seen),
        )
        tensors, merged = merge(step, events, log, native.quick().sn_memory_contains)
        sharing, unknown = _sharing(step, events, tensors, merged)
        return Trace(
            layers=tuple(ring),
            layer_ns=layer_ns,
            tensors=tensors,
            ops=log.ops,
            events=merged,
            quality=self._quality(log, samples, merged, len(ring), unknown),
            sharing=sharing,
            pages=np.zeros(0, PAGE_RUN_DTYPE) if samples is None else _on_ring(samples.runs, len(ring)),
        )

    def abandon(self) -> None:
        """End the recording without a Trace, however far it came. Does nothing if it has ended."""
        operators.stop(_Trial)
        self.stop()
        if operators.is_for(self):
            operators.forget()

    def forked(self) -> None:
        """See NotInherited: a forked child records nothing, nor looks at its gradients."""
        self.stop()

    def _see_gradient(self, name: str, param: torch.Tensor) -> None:
        """The gradient of `param` is complete, and this is where."""
        with without_function_modes():
            if param.grad is not None:
                address = names.storage_address(param.grad)
                self._gradients_seen.append(GradientSeen(self._next_seq(), f"{name}.grad", address))

    def _quality(
        self,
        log: operators.OperatorLog,
        samples: PageSamples | None,
        events: NDArray[Any],
        length: int,
        notes: tuple[str, ...],
    ) -> Quality:
        """`events` of the Trace with `length` layers: what its operators cost is taken off where they ran."""
        calls = np.bincount(events["layer"][events["kind"] == OP], minlength=length)
        spent = (calls * _operator_ns()).astype(np.int64)
        if samples is not None:
            for layer, ns in samples.tracker_ns.items():
                spent[layer % length] += ns
        own = Quality(
            tracker="ops",
            counts="operator accesses",
            lost=log.lost,
            overhead_ns=int(spent.sum()),
            layer_overhead_ns=tuple(spent.tolist()),
            blind_to=BLIND_TO,
            notes=notes,
        )
        if samples is None:
            return own
        pages = samples.quality  # its `lost` is touches: operators of other threads that were missed lose none
        missed = holding((log.lost, f"{log.lost} operators of other threads were not recorded"))
        return replace(
            pages,
            overhead_ns=own.overhead_ns,
            layer_overhead_ns=own.layer_overhead_ns,
            blind_to=(*pages.blind_to, *BLIND_TO),
            notes=(*pages.notes, *notes, *missed),
        )


def _sharing(
    step: Step, allocations: NDArray[Any], tensors: Sequence[TensorInfo], events: NDArray[Any]
) -> tuple[FalseSharing | None, tuple[str, ...]]:
    """What stock allocation would have shared; or None, and why it is not known."""
    try:
        return stock_sharing(step, allocations, tensors, events), ()
    except CapabilityError as error:
        return None, (f"page-level false sharing of stock allocation is unknown: {error}",)


def _known(named: Sequence[names.Named], aliases: dict[str, tuple[str, ...]]) -> list[Known]:
    return [
        Known(name, role, names.storage_address(tensor), tensor.untyped_storage().nbytes(), aliases.get(name, ()))
        for name, tensor, role in named
    ]


def _on_ring(runs: NDArray[Any], length: int) -> NDArray[Any]:
    """`runs`, which are changed, with layers modulo `length`: the stretch after the last tick is the first's layer.
    Those of no layer are left out."""
    if len(runs) and runs["layer"].min() < 0:
        runs = runs[runs["layer"] >= 0]
    np.remainder(runs["layer"], length, out=runs["layer"])
    return runs


class _Trial:
    """Itself the owner of what is recorded while `_operator_ns` tries what that costs."""


@functools.cache
def _operator_ns() -> float:
    """What recording adds to one operator call, in ns: the least of a few short trials."""
    with unobserved():
        return _tried()


def _tried() -> float:
    a, b = torch.zeros(4), torch.zeros(4)  # in any grad mode: what changes that would leave it changed if interrupted

    def batch() -> float:
        began = time.perf_counter_ns()
        for _ in range(200):
            a.add_(b)
        return (time.perf_counter_ns() - began) / 200

    plain = min(batch() for _ in range(5))
    operators.start(_Trial)
    try:
        recorded = min(batch() for _ in range(5))
    finally:
        operators.stop(_Trial)
    return max(recorded - plain, 0.0)
