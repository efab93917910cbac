"""A training step on fake tensors becomes a Profile: the same digest as of a recorded step, by the same code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from sentinel.core.attribution import attribute
from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.profile import Profile
from sentinel.core.step_follower import StepFollower
from sentinel.core.trace import ESTIMATED, Phase, Quality, Trace
from sentinel.profiler import hooks, names
from sentinel.profiler.annotate import annotate
from sentinel.profiler.backward import graph_task
from sentinel.profiler.estimate.fake_job import FakeJob, job_of
from sentinel.profiler.estimate.fake_recorder import ON_CPU, FakeRecorder
from sentinel.profiler.merge import GradientSeen, Known, Step, merge
from sentinel.runtime import RUNTIME

NOTE = (
    "Estimated from shapes: nothing was run, no memory was allocated. Memory that kernels take while they run is"
    " included only for convolutions, embedding bags and sparse gradients; what only values decide is not included;"
    " times are a model."
)
ON_ZEROS = (
    "These operators ran, in memory and on zeros, because PyTorch has no rule for the shapes of their results: {}. If"
    " the size of a result depends on values, it is the size for zeros; what these kernels allocate inside is not"
    " counted."
)
BLIND_TO = (
    "memory that kernels take while they run, but for convolutions, embedding bags and sparse gradients",
    "what depends on values that are not known: `.item()` gives 1, and no two rows of a sparse gradient are the same",
)

T = TypeVar("T")


def estimated(make: Callable[[], object], where: str) -> Profile:
    """The profile of one step of the job that `make()`, called `where` in messages, gives; without times.

    Raises UsageError for a job that is none or whose step ticks no layer, CapabilityError for an operator that has no
    result without values.
    """
    if RUNTIME.sink is not None:
        raise UsageError("an estimate while a session is running", "call sentinel.stop() first")
    recorder = FakeRecorder()
    fakes = _Fakes()
    with fakes, recorder:
        job = _made(lambda: job_of(make(), where), where)  # a factory may give one of its optimizer
        trace = _recorded(job, recorder, where)
    profile = attribute(trace)
    notes = (NOTE, ON_ZEROS.format(", ".join(sorted(fakes.ran)))) if fakes.ran else (NOTE,)
    return replace(profile, provisional=False, notes=(*profile.notes, *notes))


class _Fakes(FakeTensorMode):
    """Remembers which operators `ran`: PyTorch runs those of its own that it has no rule of shapes for, on zeros in
    memory."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)  # a step reads constants and buffers that were made elsewhere
        self.cache_clear()  # of what this process has run already, it keeps the results
        self.ran: set[str] = set()

    def can_run_unsafe_fallback(self, func: OpOverload) -> bool:
        """See FakeTensorMode: it asks, and where it may it runs `func` at once."""
        may = bool(super().can_run_unsafe_fallback(func))
        if may:
            self.ran.add(str(func))
        return may


def _made(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except SentinelError:
        raise
    except Exception as error:
        remedy = (
            "build the model from its configuration, without loading weights (`sentinel --debug estimate` shows where)"
        )
        if re.search(r"\b(?:cuda|nvidia|xpu|hip)\b", str(error), re.IGNORECASE):
            remedy = ON_CPU
        raise UsageError(f"{where} failed on fake tensors: {type(error).__name__}: {error}", remedy) from error


def _recorded(job: FakeJob, recorder: FakeRecorder, where: str) -> Trace:
    """One step to make the optimizers' state, which also tells whether it ticks by itself; then the one that counts."""
    sink = _Ticks(recorder)
    annotation = None
    try:
        RUNTIME.sink = sink
        _made(job.step, f"the step of {where}")
        if not sink.heard:
            annotation = annotate(job.models, job.optimizers)
        return _watched(job, recorder, sink, where)
    finally:
        RUNTIME.sink = None
        if annotation is not None:
            annotation.remove()


def _watched(job: FakeJob, recorder: FakeRecorder, sink: _Ticks, where: str) -> Trace:
    before = _known(job, recorder)
    gradients: list[GradientSeen] = []
    watched = [(name, p) for name, p in names.parameters(job.models, job.optimizers) if p.requires_grad and p.is_leaf]

    def see(name: str, param: torch.Tensor) -> None:
        if param.grad is not None:
            gradients.append(GradientSeen(recorder.next_seq(), f"{name}.grad", recorder.address(param.grad)))

    for name, param in watched:
        param.register_post_accumulate_grad_hook(hooks.Owned(recorder, functools.partial(see, name)))
    try:
        sink.begin()
        _made(job.step, f"the step of {where}")
        recorder.recording = False
    finally:
        for _, param in watched:
            hooks.remove_all_of(recorder, param._post_accumulate_grad_hooks)
    ring = sink.follower.learn()
    seqs = [seq for seq, _ in sink.ticks]
    step = Step(
        first_seq=sink.first_seq,
        last_seq=recorder.next_seq(),
        began_ns=0,
        tick_seqs=np.array(seqs, np.uint64),
        tick_ns=np.array(seqs, np.int64),
        first_layer=0,
        ring=ring,
        before=before,
        after=_known(job, recorder),
        gradients_seen=tuple(gradients),
    )
    allocations, log = recorder.logs()
    tensors, events = merge(step, allocations, log, recorder.manages)
    return Trace(
        layers=ring,
        layer_ns=np.zeros(len(ring), np.int64),
        tensors=tensors,
        ops=log.ops,
        events=events,
        quality=Quality(ESTIMATED, "operator accesses, by shapes", blind_to=BLIND_TO),
    )


def _known(job: FakeJob, recorder: FakeRecorder) -> tuple[Known, ...]:
    held = names.persistent_tensors(job.models, job.optimizers, recorder.address)
    others = names.aliases(job.models, job.optimizers, recorder.address)
    return tuple(
        Known(name, role, recorder.address(tensor), tensor.untyped_storage().nbytes(), others.get(name, ()))
        for name, tensor, role in held
    )


class _Ticks:
    """The sink of ticks: in the first step it only hears whether there are any."""

    def __init__(self, recorder: FakeRecorder) -> None:
        self.heard = False
        self.follower = StepFollower()
        self.ticks: list[tuple[int, int]] = []  # seq, layer that ended
        self.first_seq = 0
        self._recorder = recorder

    def begin(self) -> None:
        """The step that counts begins."""
        self.first_seq = self._recorder.next_seq()
        self._recorder.recording = True
        self._recorder.begin_layer()

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        self.heard = True
        if not self._recorder.recording:
            return
        if source == "add_layer" and not self.follower.accepts(torch.is_grad_enabled() or graph_task() != -1):
            return
        self.ticks.append((self._recorder.next_seq(), len(self.ticks)))
        self.follower.tick((name, phase))
        self._recorder.begin_layer()

    def step_boundary(self) -> None:
        """See TickSink."""
        if self._recorder.recording:
            self.follower.boundary()
