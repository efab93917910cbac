"""The state in which plans are applied, and why a step is recorded again: for a new shape, or for a new cycle."""

from __future__ import annotations

from sentinel import tiers
from sentinel.core.errors import SentinelError
from sentinel.core.layer_cycle import LayerCycle, Tick
from sentinel.core.step_follower import Position
from sentinel.core.trace import Trace
from sentinel.core.units import counted
from sentinel.migration.rates import short_of
from sentinel.session.context import SessionContext
from sentinel.session.planning import Dataflow
from sentinel.session.shapes import MOST, Bucket, ShapeScheduler, known_bucket
from sentinel.session.state import Over, State
from sentinel.session.whole_step import WaitingForStep, recording_step

REFINE_STEPS = 4
"""After 4 applied steps layer times are taken from them: the recorded step paid for the first touch of its pages."""
RETIME_STEPS = 16
"""After 16 applied steps layer times are taken once more: three steps say little where other jobs use the host."""

MOST_CHANGES = 10
"""A job that changes its cycle of layers is profiled anew at most 10 times."""

NO_STEP = "no optimizer stepped in the profiled step: it may have been cut short"
NO_PLAN = "a step that was to be profiled was cut short or had its layers in another order: it has no plan"


class ApplyingPlans:
    """Ticks drive the engine of the plan that fits the step. `steps`: how many have been applied."""

    def __init__(self, context: SessionContext, steps: int = 0) -> None:
        self._context, self.steps = context, steps
        self.shapes = ShapeScheduler()
        self._said_too_many = False

    # ---- see State --------------------------------------------------------------------------------------

    def tick(self, _tick: Tick, at: Position, /) -> State:
        """See State."""
        return self._end_step() if self._context.applying.tick(at) else self

    def boundary(self) -> None:
        """See State."""

    def new_cycle(self, cycle: LayerCycle, /) -> State:
        """See State. The next whole step of the new cycle is recorded, and nothing is migrated until then."""
        context = self._context
        if context.follower.n_changes == MOST_CHANGES:
            context.notes.append("the job goes through other layers than those planned for, and keeps its plan")
            context.follower.stop_detecting()
            return self
        why = context.follower.describe(cycle)
        context.applying.rest()
        context.job.add_annotated()
        context.job.adopt(context.memory)
        context.follower.follow_change(cycle)
        return WaitingForStep(context, NewCycle(context, self, why))

    # ---- plans ------------------------------------------------------------------------------------------

    def add_shape(self, flow: Dataflow) -> State:
        """A bucket for a dataflow that has a plan, which is applied from now on."""
        bucket = self._context.applying.add(flow)
        if bucket.number:
            self._context.notes.append(
                f"after {self.steps} steps: a shape without a plan came a second time and was profiled (bucket"
                f" {bucket.number})"
            )
        self._hold_to_one_budget()
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
            context.follower.detect_changes()
        return self

    def _hold_to_one_budget(self) -> None:
        """A larger footprint may mean a larger budget: then the other buckets are planned anew."""
        planning, flows = self._context.planning, self._context.applying.flows
        for bucket in self._context.applying.buckets:
            if bucket.flow.profile is not None and planning.outdated(bucket.flow, flows):
                self._renew(bucket, planning.planned(bucket.flow, flows))

    def _renew(self, bucket: Bucket, flow: Dataflow) -> bool:
        """Whether the plan of `flow` took the place of the bucket's, whose engine rests; if not, that one goes on."""
        try:
            self._context.applying.renew(bucket, flow)
        except SentinelError as error:
            self._context.notes.append(f"bucket {bucket.number} was planned anew, but keeps its plan: {error}")
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
        if not self.shapes.ended(self.steps, unknown=not known):
            return self
        if len(context.applying.buckets) < MOST:
            context.applying.rest()
            return recording_step(context, NewShape(context, self))
        if not self._said_too_many:
            self._said_too_many = True
            shapes = counted(MOST, "shape")
            context.notes.append(f"steps came in more than {shapes}; steps of other shapes used the slots that fit")
        return self

    def _time_layers(self, bucket: Bucket) -> None:
        """Layer times are those of the first applied steps from now on; where another plan is better, switch to it."""
        context = self._context
        executed = bucket.run() if bucket.served.steps in (REFINE_STEPS, RETIME_STEPS) else None
        if executed is None:
            return
        if bucket.served.steps == RETIME_STEPS:
            bucket.flow = context.planning.retimed(bucket.flow, executed)
            return
        if bucket.flow.machine is not None:
            for note in short_of(bucket.flow.machine, executed):
                _note_once(context, note)
        flow, switch = context.planning.refined(bucket.flow, executed)
        if not switch:
            bucket.flow = flow
            return
        context.applying.rest()
        if self._renew(bucket, flow):
            context.notes.append(f"planned anew after {REFINE_STEPS} applied steps, with their layer times")
        self.apply(bucket)


class NewShape:
    """A whole step is recorded for one more bucket. See Purpose."""

    def __init__(self, context: SessionContext, applying: ApplyingPlans) -> None:
        self._context, self._applying = context, applying

    def recorded(self, trace: Trace) -> State:
        """See Purpose. The step may be of a shape that has a bucket already."""
        flow = self._context.planning.profiled(trace, provisional=False)
        bucket = known_bucket(self._context.applying.buckets, flow)
        if bucket is None:
            flow = self._context.planned(flow)
        self._applying.shapes.recorded(known=bucket is not None)
        return self._applying.add_shape(flow) if bucket is None else self._applying.apply(bucket)

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
        context = self._context
        try:
            flow = context.planning.planned(context.planning.profiled(trace, provisional=False))
            bucket = context.applying.supersede(flow)
        except SentinelError as error:
            context.notes.append(f"the job goes through other layers, but the previous plan goes on: {error}")
            return self._go_on()
        context.notes[:] = [note for note in context.notes if note != NO_STEP]  # of the step that this one replaces
        context.notes.append(self._why)
        context.follower.keep_change()
        return ApplyingPlans(context, self._applying.steps).apply(bucket)

    def cut_short(self) -> State:
        """See Purpose."""
        _note_once(self._context, NO_PLAN)
        return self._go_on()

    def _go_on(self) -> State:
        """The cycle before is followed again, and its plans go on."""
        self._context.follower.undo_change()
        return self._applying.apply(self._context.applying.current)


def _note_once(context: SessionContext, note: str) -> None:
    if note not in context.notes:
        context.notes.append(note)
