"""The states in which a whole step is waited for and recorded, for whichever reason."""

from __future__ import annotations

import time
from typing import Protocol

from sentinel.core.layer_cycle import LayerCycle, Tick
from sentinel.core.step_follower import Position
from sentinel.core.trace import Trace
from sentinel.session.context import SessionContext
from sentinel.session.recording import MOST_FORKS
from sentinel.session.state import State

MOST_ROUNDS = 8
"""The recording of a step ends after eight times as many ticks as its cycle has: the job goes on with other layers. Two
or three times as many may be one step: where the cycle is of a step that ended in its forward. So may more, and where
no optimizer steps nothing else tells: each time it ends so, the next recording may take twice as long. That is at most
twice as long as the job has gone on without beginning its step again."""


class Purpose(Protocol):
    """Why a whole step is recorded, and so what follows."""

    def recorded(self, trace: Trace) -> State:
        """The step was recorded."""

    def cut_short(self) -> State | None:
        """The step was cut short, or had other layers than the cycle that is followed, or did not end.

        Returns the state from now on; or None where a step has to be recorded all the same: the next round of what
        ticked, or where the step did not end, a round of the cycle that shows.
        """


class WaitingForStep(State):
    """A whole step is to be recorded. It begins with layer 0; or with the cycle's first tick, where that has come once
    without layer 0 before the next: no step ends as the cycle does."""

    def __init__(self, context: SessionContext, purpose: Purpose, rounds: int = MOST_ROUNDS) -> None:
        """`rounds`: as MOST_ROUNDS, of the recording."""
        self._context, self._purpose, self._rounds = context, purpose, rounds
        self._seen_first_tick = False
        self._ticks = 0

    def tick(self, tick: Tick, at: Position, /) -> State:
        """See State."""
        self._context.begin_layer()
        self._ticks += 1
        if self._ticks == self._rounds * len(self._context.follower.layers):
            self._context.memory.pass_through()  # what is allocated may still be logged, and the step may never come
        if at.layer == 0:
            return recording_step(self._context, self._purpose, rounds=self._rounds)
        if at.layer == self._context.follower.second_layer:
            if self._seen_first_tick:
                return recording_step(self._context, self._purpose, tick, rounds=self._rounds)
            self._seen_first_tick = True
        return self

    def new_cycle(self, cycle: LayerCycle, /) -> State:
        """See State. The new cycle that is waited for did not come; this one does."""
        self._context.follower.follow_change(cycle)
        return WaitingForStep(self._context, self._purpose)


def recording_step(context: SessionContext, purpose: Purpose, *heard: Tick, rounds: int = MOST_ROUNDS) -> State:
    """Record one step from here: from layer 0, or from the cycle's first tick, which was `heard` just now. `rounds`: as
    MOST_ROUNDS."""
    if context.recording.replaces_pages:
        context.applying.pages_are_replaced()
    context.recording.begin(len(heard))
    context.host.profile_again()
    return RecordingStep(context, purpose, heard, rounds)


class RecordingStep(State):
    """One step is recorded, from last tick to last tick, or from first tick to first tick."""

    def __init__(self, context: SessionContext, purpose: Purpose, heard: tuple[Tick, ...], rounds: int) -> None:
        self._context, self._purpose, self._rounds = context, purpose, rounds
        self._heard, self._boundaries = list(heard), list[int]()
        self._first_layer = len(heard)

    def tick(self, tick: Tick, at: Position, /) -> State:
        """See State."""
        if at.layer == self._first_layer:
            return self._end()
        if at.layer == self._context.follower.second_layer and self._heard:
            return self._cut_short(tick)
        if len(self._heard) >= self._rounds * len(self._context.follower.layers):
            return self._end_without_step()
        self._context.recording.end_layer(len(self._heard), len(self._heard) + 1)
        self._heard.append(tick)
        return self

    def boundary(self) -> None:
        """See State."""
        self._boundaries.append(len(self._heard))

    def new_cycle(self, _cycle: LayerCycle, /) -> State:
        """See State. A step that may still end is recorded; if the cycle is new indeed, the next ticks say so again."""
        too_long = len(self._heard) > len(self._context.follower.layers)
        return self._end_without_step() if too_long else self

    def _end(self) -> State:
        context, follower, recording = self._context, self._context.follower, self._context.recording
        recording.end_last_layer(0 if self._first_layer else len(self._heard))
        context.host.end("profiled")
        if self._first_layer:
            follower.follow_recorded(self._cycle())
        began, planned = time.perf_counter_ns(), context.planning.spent_ns
        trace = recording.finish(follower.layers)
        if context.job.buckets_were_rebuilt() or recording.to_repeat():
            return recording_step(context, self._purpose, *self._heard[: self._first_layer])
        if recording.cut_short:
            context.notes.append(
                f"each of {MOST_FORKS} profiled steps forked, which ends page tracking: operators are counted instead"
            )
        after = self._purpose.recorded(trace)
        context.setup_ns += time.perf_counter_ns() - began - (context.planning.spent_ns - planned)
        return after

    def _end_without_step(self) -> State:
        self._context.recording.close()
        after = self._purpose.cut_short()
        if after is not None:
            return after
        if not self._context.follower.detecting:
            self._context.follower.detect_changes()
        return WaitingForStep(self._context, self._purpose, 2 * self._rounds)

    def _cut_short(self, tick: Tick) -> State:
        self._context.recording.close()
        after = self._purpose.cut_short()
        if after is not None:
            return after
        self._context.follower.follow(self._cycle())
        self._context.follower.tick(tick)
        return recording_step(self._context, self._purpose, tick)

    def _cycle(self) -> LayerCycle:
        return LayerCycle(tuple(self._heard), tuple(self._boundaries))
