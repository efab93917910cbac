"""Course: the way of a job from one profiled step to plans that are applied, tick by tick.

States, in order:
  RECORDING   between start_profile() and end_profile(): one step is observed
  WAITING     a whole step must be recorded anew; it begins with the ring's layer 0
  RING        that step, from last tick to last tick
  TRYING      a saved plan is in place, and is checked against the step before its migrations start
  APPLYING    the plan is applied: ticks drive the engine. Steps of a shape that it does not know lead to RING again,
              another ring of layers to WAITING
  DECLARED    there is a plan, but nothing to apply it to
  ENDING      it began to end, and was cut short: the next call goes on with it
  ENDED       stock allocation is back

What is done in them is in the other files: job, recording, planning, buckets, rings, applying, trial.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.ending import end_all
from sentinel.core.errors import SentinelError
from sentinel.core.machine import TierSpec
from sentinel.core.plan import Plan
from sentinel.core.trace import Phase, Trace
from sentinel.migration.memory import ManagedMemory, MemoryCounters
from sentinel.profiler import backward
from sentinel.profiler.layers import LayerClock
from sentinel.reports.caveats import counted
from sentinel.session.applying import Applying
from sentinel.session.buckets import FALLBACK_SHARE, MOST, Bucket, Lookout, known_bucket
from sentinel.session.job import Job
from sentinel.session.planning import Dataflow, Planning
from sentinel.session.recording import Recording
from sentinel.session.rings import Ring, RingWatch, Tick
from sentinel.session.trial import mismatch
from sentinel.session.witnessing import Witnessing

REFINE_STEPS = 4
"""After so many applied steps, layer times are taken from them: the recorded step paid for its first touches."""
RETIME_STEPS = 16
"""After so many, they are taken once more: three steps tell little where others use the host, and are not warm yet."""

MOST_RINGS, APART = 10, 100
"""A job that goes through other layers from now on is profiled anew so often at most, so many optimizer steps apart."""

MOST_OPTIMIZER_STEPS = 64
"""Of each optimizer, in the profiled step: beyond, its end was forgotten, and what is recorded would grow for ever."""


STATE_WAS_BORN = "optimizer state was born in the profiled step, so the next whole step was profiled too"
A_FORK = "the process forked in the profiled step, which ended the watch of its pages, so the next one was profiled too"
MOST_FORKS = 3
"""Where so many steps in a row fork, the last one goes by its operators: no step would ever be watched to its end."""


class State(enum.Enum):
    """See the module's docstring."""

    RECORDING = "recording"
    WAITING = "waiting"
    RING = "ring"
    TRYING = "trying"
    APPLYING = "applying"
    DECLARED = "declared"
    ENDING = "ending"
    ENDED = "ended"


class Course:
    """What the ticks of one session lead to. A session sets up what it works with, and calls it in one thread."""

    _memory: ManagedMemory
    _recording: Recording
    _planning: Planning
    _applying: Applying
    _witnessing: Witnessing
    _applicable: bool
    _slow: TierSpec

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.state = State.ENDED
        self._recorded = Dataflow()  # the step recorded last, before it has a bucket
        self._job = Job(models, optimizers)
        self._clock = LayerClock()
        self._notes: list[str] = []
        self._setup_ns = 0
        self._to_end: tuple[Callable[[], None], ...] = ()  # undo all that the session does; each may be called again
        self._ends_as = State.ENDED
        self._steps = 0  # applied ones
        self._lookout = Lookout()
        self._counters: MemoryCounters | None = None  # at the end
        self._heard: list[Tick] = []  # of the step that is tried
        self._heard_boundaries: list[int] = []
        self._missed_a_ring = False
        self._full = False
        self._forks = 0  # steps in a row whose recording a fork cut short
        self._rings: RingWatch | None = None
        self._learnt = 0  # rings, after the first
        self._learning = ""  # why a ring is to be learnt, while it is
        self._followed = self._clock  # until then

    @property
    def flow(self) -> Dataflow:
        """That of most steps, where there are several; without a plan that is applied, of the step recorded last."""
        return self._applying.main.flow if self._applying.buckets else self._recorded

    @property
    def plan(self) -> Plan | None:
        """What is planned for most steps."""
        return self.flow.plan

    # ---- ticks ------------------------------------------------------------------------------------------

    def _tick(self, name: str, phase: Phase, source: str) -> None:
        if source == "add_layer" and not self._clock.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        identity = self._clock.identify(name, phase)
        if self.state is State.RECORDING:
            begins = self._clock.layer
            assert begins is not None
            self._recording.end_layer(begins - 1, begins)
            self._clock.require_end(MOST_OPTIMIZER_STEPS * max(len(self._job.optimizers), 1))
            return
        layer, heard = self._clock.advance(identity), (name, phase)
        if self.state is not State.RING:
            self._memory.tick(-1 if self._clock.layer is None else self._clock.layer)
        if self.state is State.APPLYING:
            if self._applying.tick(layer):
                self._end_step()
        else:
            self._watch_tick(layer, heard)
        if self._rings is not None and (ring := self._rings.hear(heard)) is not None:
            self._learn(ring)

    def _boundary(self) -> None:
        """An optimizer has stepped."""
        self._memory.give_back()
        self._clock.boundary()
        if self.state is State.TRYING:
            self._heard_boundaries.append(len(self._heard))
        elif self.state is State.RING:
            self._recording.hear_boundary()
        if self._rings is not None and (ring := self._rings.boundary()) is not None:
            self._learn(ring)

    def _watch_tick(self, layer: int | None, heard: Tick) -> None:
        """WAITING, RING or TRYING: look for the whole step that is wanted."""
        first = 1 % len(self._clock.ring)
        if self.state is State.TRYING:
            again = bool(self._heard) and heard == self._heard[0]
            if again and (layer == first or self._heard_boundaries):
                self._settle_trial()
            self._heard.append(heard)
        elif self.state is State.WAITING:
            if layer == 0:
                self._begin_ring()
            elif layer == first and self._missed_a_ring:  # where no step ends as the ring does
                self._begin_ring(heard)
            self._missed_a_ring |= layer == first
        elif layer == self._recording.ring_from:
            self._end_ring()
        elif layer == first and self._recording.heard:  # cut short, or it ticked otherwise than the one before
            self._recording.close()
            if self._applying.buckets:
                self._go_on()
                return
            self._clock = self._clock.another(self._recording.heard, self._recording.boundaries)
            self._clock.advance(self._clock.identify(*heard))
            self._begin_ring(heard)
        else:
            self._recording.hear(heard)

    # ---- from one state to the next -------------------------------------------------------------------------

    def _begin_ring(self, *heard: Tick) -> None:
        self._missed_a_ring = False
        self._recording.begin_ring(*heard)
        self.state = State.RING

    def _end_ring(self) -> None:
        """A whole step was recorded."""
        self._clock = self._recording.end_ring(self._clock)
        began, planned = time.perf_counter_ns(), self._planning.spent_ns
        trace = self._recording.finish(self._clock.ring)
        self._forks = self._forks + 1 if self._recording.cut_short else 0
        if 0 < self._forks < MOST_FORKS:
            self._begin_ring(*self._recording.heard[: self._recording.ring_from])
            return
        if self._forks:
            self._notes.append(
                f"each of {MOST_FORKS} steps forked while its pages were watched, which ended it: operators count"
            )
        if self._learning:
            self._plan_anew(trace)
        else:
            self._plan_from(trace, provisional="")
        self._setup_ns += time.perf_counter_ns() - began - (self._planning.spent_ns - planned)

    def _go_on(self) -> None:
        """Plans are for one ring of layers, and the step to record had another: they are applied as before."""
        why = "a step that was to be profiled was cut short or had its layers in another order: it has no plan"
        if why not in self._notes:
            self._notes.append(why)
        if self._learning:
            self._leave_learning(self._followed)
            self._clock.lose()
        else:
            self._lookout.recorded(known=True)
        self._apply(self._applying.current)

    def _plan_from(self, trace: Trace, *, provisional: str) -> None:
        """Trace to plan, and apply it; or, if the plan is provisional, for the reason given, wait for the next whole
        step."""
        flow = self._planning.profiled(trace, provisional=bool(provisional))
        bucket = known_bucket(self._applying.buckets, flow)
        if bucket is None:
            self._recorded = flow
            self._recorded = flow = self._planning.planned(flow)
        if provisional:
            self._notes.append(provisional)
            self.state = State.WAITING
            return
        self._lookout.recorded(known=bucket is not None)
        if bucket is None:
            bucket = self._applying.add(flow)
            if bucket.number:
                self._notes.append(
                    f"after {self._steps} steps: a shape that no plan knew came again and was profiled (bucket"
                    f" {bucket.number})"
                )
            self._hold_to_one_budget()
        self._apply(bucket)

    def _learn(self, ring: Ring) -> None:
        """The job goes through other layers from now on: the next whole round of them is recorded."""
        assert self._rings is not None
        if self.state is State.RING:
            return  # a step is recorded just now
        if not self._learning:
            if self._learnt == MOST_RINGS:
                self._notes.append("the job goes through other layers than those planned for, and keeps its plan")
                self._rings = None
                return
            self._learning = self._rings.told(ring)
            self._followed = self._clock
            self._applying.rest()
            self._job.gather()
            self._job.adopt(self._memory)
        self._clock = self._followed.another(ring.ticks, ring.boundaries)
        self._rings = RingWatch(ring)  # for as long as none of its rounds has come
        self._missed_a_ring = False
        self.state = State.WAITING

    def _plan_anew(self, trace: Trace) -> None:
        """The job's new ring was recorded: its plan takes the place of all others."""
        flow = self._planning.planned(self._planning.profiled(trace, provisional=False), anew=True)
        try:
            bucket = self._applying.supersede(flow)
        except SentinelError as error:
            self._notes.append(f"other layers were planned for, but the plan before goes on: {error}")
            self._go_on()
            return
        self._notes.append(self._learning)
        self._leave_learning(self._clock)
        self._recorded, self._lookout, self._full = flow, Lookout(), False
        self._apply(bucket)

    def _leave_learning(self, clock: LayerClock) -> None:
        """`clock` is followed from now on."""
        self._clock, self._learning, self._rings = clock, "", None
        self._learnt += 1

    def _hold_to_one_budget(self) -> None:
        """A larger footprint may mean a larger budget: then the other buckets are planned anew."""
        for bucket in self._applying.buckets:
            if bucket.flow.profile is not None and self._planning.outdated(bucket.flow):
                self._renew(bucket, self._planning.planned(bucket.flow))

    def _renew(self, bucket: Bucket, flow: Dataflow) -> bool:
        """Whether the plan of `flow` took the place of the bucket's, whose engine rests; if not, that one goes on."""
        try:
            self._applying.renew(bucket, flow)
        except SentinelError as error:
            self._notes.append(f"bucket {bucket.number} was planned anew, but keeps its plan: {error}")
            return False
        return True

    def _apply(self, bucket: Bucket) -> None:
        """From now on the plan of `bucket` is carried out; layer 0, or the first after it, has begun."""
        self._applying.serve(bucket, self._clock.layer)
        self._start()

    def _start(self) -> None:
        if not self._applicable:
            self._notes.append(
                f"nothing was applied: this host has no slower tier, {self._slow.name} is declared only;"
                f' use slow="emulated:PRESET" to run with injected delays'
            )
            self._close(State.DECLARED)
            return
        self._applying.start(self._clock.layer)
        self.state = State.APPLYING
        if self._rings is None:
            self._job.hear_others()
            ring = Ring.of(self._clock.ring, self._clock.boundaries)
            self._rings = RingWatch(ring, earliest=APART if self._learnt else 0)

    def _end_step(self) -> None:
        """An applied step has ended. Where shapes come again that no bucket knows, one such step is recorded."""
        self._steps += 1
        self._witnessing.step_ended()
        known = self._applying.end_step().known
        if known:
            self._time_layers(self._applying.current)
        if not self._lookout.ended(self._steps, unknown=not known):
            return
        if len(self._applying.buckets) < MOST:
            self._applying.rest()
            self._begin_ring()
        elif not self._full:
            self._full = True
            shapes = counted(MOST, "shape")
            self._notes.append(f"steps came in more than {shapes}; those beyond were served where they fit")

    def _time_layers(self, bucket: Bucket) -> None:
        """Layer times are those of the first applied steps from now on; where another plan is better, switch to it."""
        executed = bucket.run() if bucket.served.steps in (REFINE_STEPS, RETIME_STEPS) else None
        if executed is None:
            return
        if bucket.served.steps == RETIME_STEPS:
            bucket.flow = self._planning.retimed(bucket.flow, executed)
            return
        flow, switch = self._planning.refined(bucket.flow, executed)
        if not switch:
            bucket.flow = flow
            return
        self._applying.rest()
        if self._renew(bucket, flow):
            self._notes.append(f"planned anew after {REFINE_STEPS} applied steps, with their layer times")
        self._apply(bucket)

    # ---- a saved plan ---------------------------------------------------------------------------------------

    def _try(self, plan: Plan) -> None:
        """A saved plan: its slots are served at once; its migrations start when the step has proved to be its own."""
        self._clock = LayerClock(plan.layers)
        self._heard, self._heard_boundaries = [], []
        self._applying.serve(self._applying.add(self._planning.saved(plan)), self._clock.layer)
        self.state = State.TRYING

    def _settle_trial(self) -> None:
        """A step has run on a saved plan's slots: apply the plan if the step was its own, else profile anew."""
        if self.state is not State.TRYING:
            return
        assert self.plan is not None
        born = self._job.state_was_born()
        self._job.adopt(self._memory)
        why = mismatch(self.plan, self._clock, self._job)
        missed = self._applying.end_step().missed
        if born and not why:  # it found no slots in this step, nor did what came after it: the next one tells
            self._heard, self._heard_boundaries = [], []
            return
        if not why and missed > FALLBACK_SHARE:
            why = f"{missed:.0%} of its bytes found no planned slot"
        if not why:
            self._clock.boundaries = tuple(self._heard_boundaries)
            self._start()
            return
        self._notes.append(f"the saved plan does not match this step ({why}); the step was profiled anew")
        self._recorded = replace(self.flow, plan=None)
        self._applying.clear()
        self._clock = self._clock.another(
            self._heard, self._heard_boundaries
        )  # what this step ticked is the ring to record
        self._memory.record()
        self.state = State.WAITING

    # ---- the end ----------------------------------------------------------------------------------------

    def _close(self, state: State | None = None) -> None:
        """Stock allocation is back; what lives in managed memory stays valid. May be called again, after whatever."""
        self._ends_as = state or self._ends_as
        self.state = State.ENDING
        end_all(*reversed(self._to_end))
        self.state = self._ends_as

    def _count(self) -> None:
        self._counters = self._memory.counters()
