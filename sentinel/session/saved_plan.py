"""The state in which a saved plan is checked: its slots serve one step before its migrations start."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.errors import UsageError
from sentinel.core.layer_cycle import LayerCycle, Tick
from sentinel.core.plan import Plan
from sentinel.core.step_follower import Position
from sentinel.session.applying_plans import ApplyingPlans
from sentinel.session.context import SessionContext
from sentinel.session.profiling import FirstPlan
from sentinel.session.shapes import FALLBACK_SHARE
from sentinel.session.state import State
from sentinel.session.training_job import TrainingJob
from sentinel.session.whole_step import WaitingForStep


class CheckingSavedPlan(State):
    """A step runs on the slots of a saved plan. Where the step turns out to be the plan's own, the plan is applied."""

    def __init__(self, context: SessionContext, plan: Plan) -> None:
        self._context, self._plan = context, plan
        self._heard: list[Tick] = []  # ticks of the step
        self._boundaries: list[int] = []  # after how many of these ticks an optimizer has stepped

    def begin(self) -> State:
        """From now on the slots of the plan are given out."""
        context = self._context
        context.follower.follow_saved(self._plan.layers)
        context.applying.serve(context.applying.add(context.planning.saved(self._plan)))
        return self

    def tick(self, tick: Tick, at: Position, /) -> State:
        """See State."""
        self._context.begin_layer()
        again = bool(self._heard) and tick == self._heard[0]
        ended = again and (at.layer == self._context.follower.second_layer or bool(self._boundaries))
        after = self.end_step() if ended else self
        self._heard.append(tick)
        return after

    def boundary(self) -> None:
        """See State."""
        self._boundaries.append(len(self._heard))

    def end_step(self) -> State:
        """The step has ended: apply the plan if the step was its own, else wait for a step to profile.

        Raises UsageError if nothing ticked in it.
        """
        if not self._heard:
            raise UsageError(
                "end_profile(): nothing ticked in the step that a saved plan was checked in",
                "call sentinel.annotate(model, optimizer) before it, or sentinel.add_layer() in it",
            )
        context = self._context
        assert context.flow.plan is not None
        state_was_born = context.job.state_was_born()
        context.job.adopt(context.memory)
        why = mismatch(context.flow.plan, context.follower.in_step, context.job)
        missed = context.applying.end_step().missed
        if state_was_born and not why:  # it got no slots in this step, nor did what was allocated after it
            self._heard, self._boundaries = [], []
            return self  # the next step is checked
        if not why and missed > FALLBACK_SHARE:
            why = f"{missed:.0%} of its bytes found no planned slot"
        if not why:
            context.follower.learn_boundaries(self._boundaries)
            return ApplyingPlans(context).start()
        budget = context.planning.keep_budget_of(self._plan)
        context.planning.keep_pins_of(self._plan)
        context.notes.append(f"the saved plan does not match this step ({why}); the step was profiled again{budget}")
        context.recorded = replace(context.flow, plan=None)
        context.applying.clear()
        context.follower.follow(LayerCycle(tuple(self._heard), tuple(self._boundaries)))  # the one to record
        context.memory.record()
        return WaitingForStep(context, FirstPlan(context))


def mismatch(plan: Plan, in_step: bool, job: TrainingJob) -> str:
    """Why `plan` is not that of the step that `job` has just done; "" if it may be. `in_step`: the step's layers were
    those of the plan."""
    if not in_step:
        return "its layers differ"
    present = job.storage_bytes()
    for slot in plan.slots:
        if slot.key is None and present.get(slot.name) != slot.nbytes:
            return f"{slot.name} has {present.get(slot.name, 'no')} bytes, not {slot.nbytes}"
    return ""
