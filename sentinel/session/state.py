"""The states of a session: what ticks and optimizer steps lead to.

In order: Profiling (profiling.py), WaitingForStep and RecordingStep (whole_step.py), ApplyingPlans (applying_plans.py),
Over. With a saved plan CheckingSavedPlan (saved_plan.py) comes first. ApplyingPlans leads to RecordingStep where steps
of a new shape come again, and to WaitingForStep where the job goes through another cycle of layers; in a job of several
processes WaitingForPlan follows then.
"""

from __future__ import annotations

import enum

from sentinel.core.layer_cycle import LayerCycle, Tick
from sentinel.core.step_follower import Position


class State:
    """What a session does between two changes of its state. Each call returns the state from then on, mostly itself."""

    def tick(self, _tick: Tick, _at: Position, /) -> State:
        """A tick, and what it says."""
        return self

    def boundary(self) -> None:
        """An optimizer has stepped."""

    def new_cycle(self, _cycle: LayerCycle, /) -> State:
        """The job goes through this cycle of layers from now on. Before one was recorded, no cycle is new."""
        return self


class Over(State, enum.Enum):
    """Nothing is applied any more, or yet; ticks lead to nothing. See State."""

    DECLARED = "there is a plan, but nothing to apply it to"
    ENDING = "the end has begun; where it was cut short, the next call goes on with it"
    ENDED = "stock allocation is back"
