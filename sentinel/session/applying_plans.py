"""The state in which plans are applied, and why a step is recorded again: for a new shape, or for a new cycle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sentinel import tiers
from sentinel.core.errors import SentinelError
from sentinel.core.layer_cycle import LayerCycle, Tick
from sentinel.core.step_follower import Position
from sentinel.core.trace import Trace
from sentinel.core.units import counted
from sentinel.migration.rates import short_of
from sentinel.session.context import SessionContext
from sentinel.session.planning import Dataflow, PendingPlan, Refined
from sentinel.session.shapes import MOST, RETIME_STEPS, Bucket, ShapeScheduler, known_bucket
from sentinel.session.state import Over, State
from sentinel.session.whole_step import WaitingForStep, recording_step

REFINE_STEPS = 4
"""After 4 applied steps layer times are taken from them: the recorded step paid for the first touch of its pages."""

MOST_CHANGES = 10
"""A job that changes its cycle of layers is profiled again at most 10 times."""

MOST_REPLACED = 10
"""Tensors that take the place of those that were adopted are adopted at most 10 times."""

MOST_SINGLE = 3
"""Likewise where only single parameters were given other data."""

NO_STEP = "no optimizer stepped in the profiled step: it may have been cut short"
NO_STEP_SEEN = (
    "no optimizer was seen to step in the profiled step: it was cut short, or steps where torch.compile had it"
)
NO_PLAN = "a step that was to be profiled was cut short or had its layers in another order: it has no plan"


class ApplyingPlans(State):
    """Ticks drive the engine of the plan that fits the step. `steps`: how many have been applied."""

    def __init__(self, context: SessionContext, steps: int = 0) -> None:
        self._context, self.steps = context, steps
        self.shapes = ShapeScheduler()
        self._said_too_many = False
        self._pending: dict[Bucket | None, _Pending] = {}  # for a bucket, or for a shape that has none yet
        self._times_replaced = self._times_single = 0
        self._cancelled = False  # one of those, for another one

    # ---- see State --------------------------------------------------------------------------------------

    def tick(self, _tick: Tick, at: Position, /) -> State:
        """See State."""
        return self._end_step() if self._context.applying.tick(at) else self

    def new_cycle(self, cycle: LayerCycle, /) -> State:
        """See State. The next whole step of the new cycle is recorded, and nothing is migrated until then."""
        context = self._context
        if context.follower.n_changes == MOST_CHANGES:
            context.notes.append("the job goes through other layers than those planned for, and keeps its plan")
            context.follower.stop_detecting()
            return self
        why = context.follower.describe(cycle)
        for each in self._pending.values():  # for a cycle that has ended
            each.plan.cancel()
        self._pending.clear()
        context.applying.rest()
        context.job.add_annotated()
        context.job.adopt(context.memory)
        context.follower.follow_change(cycle)
        return WaitingForStep(context, NewCycle(context, self, why))

    # ---- plans ------------------------------------------------------------------------------------------

    def plan_shape(self, flow: Dataflow) -> State:
        """A profiled dataflow that no bucket knows. It has one once it has a plan, and until then this goes on."""
        applying = self._context.applying
        try:
            pending = self._context.planning.begin(flow, applying.flows)
            planned = pending.flow()
        except SentinelError as error:
            self._keep_plans(None, error)
            return self.apply(applying.current)
        if planned is not None:
            return self.add_shape(planned)

        def add(planned: Dataflow) -> None:
            self.shapes.recorded(known=False)  # its steps until now were of no bucket
            if known_bucket(applying.buckets, planned) is None:
                applying.rest()
                self.add_shape(planned)

        self._await(None, pending, add)
        return self.apply(applying.current)

    def add_shape(self, flow: Dataflow) -> State:
        """A bucket for a dataflow that has a plan, which is applied from now on."""
        bucket = self._context.applying.add(flow)
        if bucket.number:
            self._context.notes.append(
                f"after {counted(self.steps, 'step')}: a step with other operators or sizes came a second time and was"
                f" profiled (bucket {bucket.number})"
            )
        self._hold_to_one_budget(self._renew)
        return self.apply(bucket)

    def apply(self, bucket: Bucket) -> State:
        """From now on the plan of `bucket` is carried out; layer 0, or the first after it, has begun."""
        self._context.applying.serve(bucket)
        return self.start()

    def start(self) -> State:
        """From now on the plan whose slots are given out is carried out."""
        context = self._context
        if declared := tiers.on_paper(context.machine):
            context.notes.append(
                f"nothing was applied: this host has no slower tier, {declared[0].name} is declared only;"
                f' use slow="emulated:PRESET" to run with injected delays'
            )
            return Over.DECLARED
        context.host.begin("applied")
        context.applying.start()
        if not context.follower.detecting:
            context.job.watch_new_optimizers()
            if context.follower.n_changes < MOST_CHANGES:
                context.follower.detect_changes()
        return self

    def _hold_to_one_budget(self, renew: Callable[[Bucket, Dataflow], bool]) -> None:
        """A larger footprint may mean a larger budget: then the other buckets are planned again."""
        planning, flows = self._context.planning, self._context.applying.flows
        for bucket in self._context.applying.buckets:
            if bucket.flow.profile is not None and planning.outdated(bucket.flow, flows):
                try:
                    pending = planning.begin(bucket.flow, flows)
                    flow = pending.flow()
                except SentinelError as error:
                    self._keep_plans(bucket, error)
                    continue
                if flow is not None:
                    renew(bucket, flow)
                else:
                    self._await(bucket, pending, partial(self._renew_between_steps, bucket))

    def _renew_between_steps(self, bucket: Bucket, flow: Dataflow) -> bool:
        """As `_renew`, of a bucket whose engine may be carrying out its plan, as a step begins."""
        self._context.applying.rest()
        renewed = self._renew(bucket, flow)
        self.apply(self._context.applying.current)
        return renewed

    def _renew(self, bucket: Bucket, flow: Dataflow) -> bool:
        """Whether the plan of `flow` took the place of the bucket's, whose engine rests; if not, that one goes on."""
        try:
            self._context.applying.renew(bucket, flow)
        except SentinelError as error:
            self._context.notes.append(f"bucket {bucket.number} was planned again, but keeps its plan: {error}")
            return False
        return True

    # ---- after a step -----------------------------------------------------------------------------------

    def _end_step(self) -> State:
        """A step has ended. Where shapes come again that no bucket knows, one such step is recorded."""
        context = self._context
        self.steps += 1
        context.witnessing.step_ended()
        known = context.applying.end_step().known
        if known:
            self._time_layers(context.applying.current)
        if self._pending:
            self._take_plan()
        if self._tensors_were_replaced():
            self._adopt_replaced()
        if not self.shapes.ended(self.steps, unknown=not known) or self._pending:
            return self
        if len(context.applying.buckets) < MOST:
            context.applying.rest()
            return recording_step(context, NewShape(context, self))
        if not self._said_too_many:
            self._said_too_many = True
            shapes = counted(MOST, "shape")
            context.notes.append(f"steps came in more than {shapes}; steps of other shapes used the slots that fit")
        return self

    def _tensors_were_replaced(self) -> bool:
        """Whether they are to be adopted: loads, and single parameters, each have so many times, so that a job that
        gives a parameter other data in each step leaves some for what it loads."""
        job, memory = self._context.job, self._context.memory
        came = job.successors_came()
        if self._times_replaced < MOST_REPLACED and (came or job.tensors_were_replaced(memory)):
            self._times_replaced += 1
            return True
        if self._times_single < MOST_SINGLE and job.a_parameter_was_replaced(memory):
            self._times_single += 1
            return True
        return False

    def _adopt_replaced(self) -> None:
        """Loaded state, or another model of the same layers, is elsewhere than what it replaces: it moves into managed
        memory, and plans go on there."""
        context = self._context
        context.applying.rest()
        context.job.add_successors()
        context.job.adopt(context.memory)
        for bucket in context.applying.buckets:
            self._renew(bucket, bucket.flow)
        self.apply(context.applying.current)
        for bucket in context.applying.buckets:
            if bucket.engine is not None:
                bucket.engine.look_soon()
        why = "the job had other tensors (loaded, or of another model): they moved into managed memory"
        _note_once(context, f"after {counted(self.steps, 'step')}: {why}")

    def _time_layers(self, bucket: Bucket) -> None:
        """Layer times are those of the first applied steps from now on; where another plan is better, switch to it."""
        context = self._context
        executed = bucket.run() if bucket.served.steps in (REFINE_STEPS, bucket.retimed_at) else None
        if executed is None:
            return
        if bucket.served.steps == bucket.retimed_at:
            bucket.flow = context.planning.retimed(bucket.flow, executed)
            return
        if bucket.flow.machine is not None:
            for note in short_of(bucket.flow.machine, executed):
                _note_once(context, note)
        try:
            refined = context.planning.refined(bucket.flow, executed)
        except SentinelError as error:
            self._keep_plans(bucket, error)
            return
        if refined is not None:
            bucket.flow = refined.kept
            self._await(bucket, refined.pending, partial(self._switch, bucket, refined))

    def _switch(self, bucket: Bucket, refined: Refined, flow: Dataflow) -> None:
        """To the other plan of a bucket, where that is better."""
        if refined.is_better(flow) and self._renew_between_steps(bucket, flow):
            bucket.retimed_at = bucket.served.steps + RETIME_STEPS - REFINE_STEPS
            self._context.notes.append(f"planned again after {REFINE_STEPS} applied steps, with their layer times")

    def _await(self, bucket: Bucket | None, plan: PendingPlan, take: Callable[[Dataflow], object]) -> None:
        """`take` it once it is made. What was awaited for that bucket until now is out of date."""
        if (before := self._pending.pop(bucket, None)) is not None:
            before.plan.cancel()
            self._cancelled = True
        self._pending[bucket] = _Pending(plan, take)

    def _take_plan(self) -> None:
        """A plan that is made by now is put in place, one after each step. A step has just ended."""
        for bucket, (plan, take) in self._pending.items():
            try:
                flow = plan.flow()
            except SentinelError as error:
                del self._pending[bucket]
                self._keep_plans(bucket, error)
                return
            if flow is not None:
                del self._pending[bucket]
                take(flow)
                if self._cancelled:  # it may have been for a larger budget
                    self._cancelled = False
                    self._hold_to_one_budget(self._renew_between_steps)
                return

    def _keep_plans(self, bucket: Bucket | None, why: SentinelError) -> None:
        """There is no other plan for that bucket, or for a shape that has none."""
        _note_once(self._context, f"the present plans go on, since another one could not be made: {why}")
        if bucket is None:
            self.shapes.recorded(known=True)  # in vain, which is allowed so often


class _Pending(NamedTuple):
    plan: PendingPlan
    take: Callable[[Dataflow], object]


class NewShape:
    """A whole step is recorded for one more bucket. See Purpose."""

    def __init__(self, context: SessionContext, applying: ApplyingPlans) -> None:
        self._context, self._applying = context, applying

    def recorded(self, trace: Trace) -> State:
        """See Purpose. The step may be of a shape that has a bucket already."""
        flow = self._context.planning.profiled(trace, provisional=False)
        bucket = known_bucket(self._context.applying.buckets, flow)
        self._applying.shapes.recorded(known=bucket is not None)
        return self._applying.plan_shape(flow) if bucket is None else self._applying.apply(bucket)

    def cut_short(self) -> State:
        """See Purpose. Plans are for one cycle of layers, and this step had another: those that there are go on."""
        _note_once(self._context, NO_PLAN)
        self._applying.shapes.recorded(known=True)
        return self._applying.apply(self._context.applying.current)


class NewCycle:
    """A whole step is recorded whose plan replaces all others. `why`: a sentence for the report. See Purpose."""

    def __init__(self, context: SessionContext, applying: ApplyingPlans, why: str) -> None:
        self._context, self._applying, self._why = context, applying, why

    def recorded(self, trace: Trace) -> State:
        """See Purpose."""
        planning = self._context.planning
        try:
            pending = planning.begin(planning.profiled(trace, provisional=False))
        except SentinelError as error:
            return self._refused(error)
        if (after := self.planned(pending)) is not None:
            return after
        self._context.memory.pass_through()  # it records, and no plan has slots for these layers
        return WaitingForPlan(self._context, self, pending)

    def planned(self, pending: PendingPlan) -> State | None:
        """The state from the moment on at which the plan is made; None before."""
        context = self._context
        try:
            if (flow := pending.flow()) is None:
                return None
            bucket = context.applying.supersede(flow)
        except SentinelError as error:
            return self._refused(error)
        context.notes[:] = [note for note in context.notes if note != NO_STEP]  # of the step that this one replaces
        context.notes.append(self._why)
        context.follower.keep_change()
        return ApplyingPlans(context, self._applying.steps).apply(bucket)

    def cut_short(self) -> State:
        """See Purpose."""
        _note_once(self._context, NO_PLAN)
        return self._go_on()

    def _refused(self, error: SentinelError) -> State:
        self._context.notes.append(f"the job goes through other layers, but the previous plan goes on: {error}")
        return self._go_on()

    def _go_on(self) -> State:
        """The cycle before is followed again, and its plans go on."""
        self._context.follower.undo_change()
        return self._applying.apply(self._context.applying.current)


class WaitingForPlan(State):
    """The plan of a new cycle is made in another process. Nothing is moved until it is there, and allocations are
    stock's."""

    def __init__(self, context: SessionContext, purpose: NewCycle, pending: PendingPlan) -> None:
        self._context, self._purpose, self._pending = context, purpose, pending

    def tick(self, _tick: Tick, at: Position, /) -> State:
        """See State."""
        if at.layer != 0:
            return self
        self._context.witnessing.step_ended()
        return self._purpose.planned(self._pending) or self

    def new_cycle(self, _cycle: LayerCycle, /) -> State:
        """See State. Whoever applies the plan is told again, if the cycle is new indeed."""
        return self._purpose.planned(self._pending) or self


def _note_once(context: SessionContext, note: str) -> None:
    if note not in context.notes:
        context.notes.append(note)
