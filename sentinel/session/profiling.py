"""The state between `start_profile()` and `end_profile()`, and the first plan that follows from it."""

from __future__ import annotations

import time

from sentinel.core.layer_cycle import Tick
from sentinel.core.rules import first_broken
from sentinel.core.step_follower import Position
from sentinel.core.trace import LayerId, Trace
from sentinel.profiler import annotate
from sentinel.session.applying_plans import NO_STEP, NO_STEP_SEEN, ApplyingPlans
from sentinel.session.context import SessionContext
from sentinel.session.state import State
from sentinel.session.whole_step import WaitingForStep

MOST_OPTIMIZER_STEPS = 64
"""More optimizer steps than this, of each optimizer, in one profiled step mean that `end_profile()` was forgotten: stop
before the log grows without bound."""

STATE_WAS_BORN = "optimizer state was born in the profiled step, so the next whole step was profiled too"
BUCKETS_CHANGE = "DistributedDataParallel settles its buckets after the profiled step, so a later one was profiled too"
A_FORK = "the process forked in the profiled step, which ended the watch of its pages, so the next one was profiled too"


class Profiling(State):
    """One step is observed. The context's recording has begun."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        # no optimizer joins the job before a plan is applied
        self._most_steps = MOST_OPTIMIZER_STEPS * max(len(context.job.optimizers), 1)

    def tick(self, _tick: Tick, at: Position, /) -> State:
        """See State."""
        assert at.layer is not None
        self._context.recording.end_layer(at.layer - 1, at.layer)
        self._context.follower.require_end(self._most_steps)
        return self

    def end(self, layers: tuple[LayerId, ...]) -> State:
        """The step has ended; `layers` were its own. Returns the state from now on."""
        context = self._context
        context.host.end("profiled")
        began, planned = time.perf_counter_ns(), context.planning.spent_ns
        trace = context.recording.finish(layers)
        after = self._after(trace)
        context.setup_ns += time.perf_counter_ns() - began - (context.planning.spent_ns - planned)
        return after

    def _after(self, trace: Trace) -> State:
        job = self._context.job
        provisional = first_broken(
            (job.state_was_born(), STATE_WAS_BORN),
            (job.buckets_were_rebuilt() or job.buckets_are_to_be_rebuilt(), BUCKETS_CHANGE),
            (self._context.recording.cut_short, A_FORK),
        )
        first = FirstPlan(self._context)
        if not provisional:
            if job.optimizers and not self._context.follower.cycle.boundaries:
                self._context.notes.append(NO_STEP_SEEN if annotate.compiled_something() else NO_STEP)
            return first.recorded(trace)
        self._context.planned(self._context.planning.profiled(trace, provisional=True))
        self._context.notes.append(provisional)
        self._context.follower.detect_changes()  # that step may have been like no other
        return WaitingForStep(self._context, first)


class FirstPlan:
    """A whole step is recorded for the first plan that is applied. See Purpose."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def recorded(self, trace: Trace) -> State:
        """See Purpose."""
        if self._context.follower.detecting:  # the profiled layers did not come again; these may be others
            self._context.follower.keep_change()
        flow = self._context.planning.profiled(trace, provisional=False)
        return ApplyingPlans(self._context).add_shape(self._context.planned(flow))

    def cut_short(self) -> None:
        """See Purpose. There is no plan to go on with."""
