"""Session: profile one step, plan, apply, and remember what happened for the report.

Here are the user's calls; the states that a session goes through, and what ticks do in them, are in course.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sentinel import files
from sentinel.core.errors import UsageError
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import Phase, Trace
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate, ticks
from sentinel.reports import Report, Setup, build_report
from sentinel.session.applying import Applying, applicable, nothing_ran
from sentinel.session.buckets import rows_of
from sentinel.session.course import A_FORK, STATE_WAS_BORN, Course, State
from sentinel.session.planning import Planning
from sentinel.session.recording import Recording
from sentinel.session.request import Request, available_bytes, load_plan, machine_of, notes_on
from sentinel.session.trainer import Trainer
from sentinel.session.witnessing import Witnessing
from sentinel.system.topology import topology

MOST_ATTEMPTS = 16
"""So often an end that fails is tried again, at the calls that follow."""


class Session(Course):
    """One cycle of profile, plan and apply. One thread calls it.

    It is the sink of ticks from before it changes anything until it has undone all: so whatever cuts it short, Ctrl-C
    included, the next call of any kind finds it and ends it.
    """

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        super().__init__(models, optimizers)
        self.request = request
        self.stopped = False  # by the user
        self._busy = False  # with a call that must be done wholly or undone
        self._attempts = 0  # to end it
        self._trainer = Trainer()

    # ---- what is known --------------------------------------------------------------------------------------

    @property
    def profiling(self) -> bool:
        """Whether `end_profile()` is still to come: not in a forked child, where nothing is watched."""
        return self.state is State.RECORDING and ticks.sink is self

    @property
    def profile(self) -> Profile | None:
        """What the present plan was made from; None for a saved plan."""
        return self.flow.profile

    @property
    def trace(self) -> Trace | None:
        """The recorded step that the profile digests."""
        return self.flow.trace

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of how it went, a sentence each."""
        return (
            *self._notes,
            *self._applying.notes(),
            *([self._planning.capped] if self._planning.capped else []),
            *self._witnessing.notes(),
            *self._trainer.notes(),
            *self._recording.told,
            *annotate.notes(),
        )

    # ---- the user's calls -------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin. Whatever is wrong with the request is raised before anything is changed."""
        began = time.perf_counter_ns()
        given = load_plan(self.request)
        machine = machine_of(self.request)
        self._notes += notes_on(machine, topology())
        available = available_bytes(self.request, machine) + self._job.held_bytes_of(machine.fast)
        self._planning = Planning(self.request, machine, available)
        self._planning.check_words()
        self._memory = ManagedMemory.reserve()
        self._recording = Recording(self._memory, self._job)
        self._applying = Applying(self._memory, machine, self._job)
        self._applicable, self._slow = applicable(machine), machine.tiers[1]
        self._witnessing = Witnessing()
        self._to_end = (  # the last first
            self._job.close,
            self._memory.uninstall,
            self._count,
            self._witnessing.end,
            self._applying.end,
            self._recording.close,
        )
        self._wholly(self._begin, given)
        self._setup_ns += time.perf_counter_ns() - began

    def _begin(self, given: Plan | None) -> None:
        ticks.sink = self
        self._recording.choose(self.request.tracker)
        self._memory.activate()
        self._notes += filter(None, [self._memory.note_on_limit()])
        self._job.gather()
        self._applying.bind_fast()
        # a saved plan may cut tensors anywhere, and the kernel moves a huge page as one
        self._memory.let_tensors_have_huge_pages(given is None or self._slow.kind != "node")
        if given is None:
            self._recording.prepare()
        self._job.adopt(self._memory)
        if self._slow.kind == "node":
            self._witnessing.begin(self._memory)
        if given is None:
            self._recording.begin(0)
            self.state = State.RECORDING
        else:
            self._try(given)

    @property
    def away(self) -> bool:
        """Whether the thread that began the session is another one, and lives."""
        return self._trainer.away

    @property
    def cut_short(self) -> bool:
        """Whether a call, or the end, began and went no further: an interrupt came."""
        began = self._busy or self.state in (State.ENDING, State.ENDED, State.DECLARED)  # cheap: each tick asks
        return began and ticks.sink is self and not self.away and not _under_way()

    def finish_ending(self) -> None:
        """Go on with an end that was cut short, or that failed. Never raises an Exception."""
        self._attempts += 1
        self._trainer.hand_over("this call", self._memory)
        self._end_quietly()
        if ticks.sink is self and self._attempts >= MOST_ATTEMPTS:
            self._notes.append("it could not end: what is left stays until the process ends")
            self._to_end = ()
            self._end_quietly()

    def end_profile(self) -> Plan:
        """See `sentinel.end_profile`."""
        self._trainer.hand_over("end_profile()", self._memory)
        if self.state is State.TRYING:
            assert self.plan is not None
            saved = self.plan
            self._wholly(self._settle_trial)
            return self.plan or replace(saved, provisional=True)
        if self.state is not State.RECORDING:
            if self.request.plan is not None and self.plan is not None:
                return self.plan
            raise UsageError(
                "end_profile(): the profiled step has ended already", "call it once, after start_profile()"
            )
        self._wholly(self._end_recording)
        assert self.plan is not None
        return self.plan

    def _end_recording(self) -> None:
        began, planned = time.perf_counter_ns(), self._planning.spent_ns
        self._memory.give_back()
        ring = self._trainer.learn(self._clock)
        if self._job.optimizers and not self._clock.boundaries:
            self._notes.append("no optimizer stepped in the profiled step: it may have been cut short")
        trace = self._recording.finish(ring)
        if self._job.state_was_born():
            self._plan_from(trace, provisional=STATE_WAS_BORN)
        else:
            self._plan_from(trace, provisional=A_FORK if self._recording.cut_short else "")
        self._setup_ns += time.perf_counter_ns() - began - (self._planning.spent_ns - planned)

    def stop(self) -> Run:
        """See `sentinel.stop`."""
        if self.state not in (State.DECLARED, State.ENDED):
            self._trainer.hand_over("stop()", self._memory)
            if self.state in (State.RECORDING, State.RING) and not self._applying.buckets:
                self._notes.append("stopped while a step was recorded: nothing was applied")
            try:
                self._wholly(self._close)
            except Exception as error:
                warnings.warn(f"sentinel could not end wholly, and tries again: {error}", RuntimeWarning, stacklevel=3)
        self.stopped = True
        return self._executed() or nothing_ran(self.plan)

    def report(self) -> Report:
        """See `sentinel.report`."""
        if self.profile is None and self.plan is None:
            raise UsageError("report(): no step has been profiled to its end", "call sentinel.end_profile() first")
        flow, loose = self._planning.bounded(self.flow)
        if loose:
            self._notes.append(f"the bound is loose: {loose}")
        if self._applying.buckets:
            self._applying.main.flow = flow
        else:
            self._recorded = flow
        executed = self._executed()
        return build_report(
            profile=flow.profile,
            plan=flow.plan,
            machine=flow.machine,
            executed=executed and files.with_origin(executed, plan=flow.plan or ""),
            simulated=flow.simulated and files.with_origin(flow.simulated, plan=flow.plan or ""),
            setup=self._setup(),
        )

    def _executed(self) -> Run | None:
        run = self._applying.run()
        return run and self._witnessing.told(run)

    # ---- ticks ------------------------------------------------------------------------------------------

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        if self._trainer.ticks():
            self._guard(self._tick, name, phase, source)

    def step_boundary(self) -> None:
        """See TickSink."""
        if self._trainer.ticks():
            self._guard(self._boundary, end_now=False)  # torch goes through hooks just now, of which some are ours

    def _guard(self, call: Callable[..., None], *arguments: str, end_now: bool = True) -> None:
        """Whatever goes wrong in a tick ends the session, never the training step that ticked."""
        if self.cut_short:
            self.finish_ending()
            return
        try:
            self._wholly(call, *arguments, end_now=end_now)
        except Exception as error:
            self._notes.append(f"the session ended by itself: {error}")
            warnings.warn(
                f"sentinel has stopped, training goes on with stock allocation: {error}", RuntimeWarning, stacklevel=3
            )

    def _wholly(self, call: Callable[..., None], *arguments: Any, end_now: bool = True) -> None:
        """`call`, after which the session goes on; or the session ends, and what was raised goes on.

        Not `end_now`: with the next call, if it is no interrupt.
        """
        self._busy = True
        try:
            call(*arguments)
        except Exception:
            self.state = State.ENDING
            if end_now:
                self._end_quietly()
            raise
        except BaseException:
            self._end_quietly()
            raise
        self._busy = False

    # ---- the end ----------------------------------------------------------------------------------------

    def _close(self, state: State | None = None) -> None:
        """What Course says; then, and not before, no tick comes any more."""
        super()._close(state)
        self._busy = False
        if ticks.sink is self:
            ticks.sink = None

    def _end_quietly(self) -> None:
        """`_close`. What it cannot undo is in the notes, and is tried again with the next call."""
        try:
            self._close()
        except Exception as error:
            self._notes.append(f"as it ended, this went wrong too: {error}")

    def _setup(self) -> Setup:
        counters = self._memory.counters() if self._counters is None else self._counters
        slow = self.request.slow
        if slow == "auto" and self.flow.machine is not None:
            tier = self.flow.machine.tiers[1]
            slow = f"numa:{tier.node}" if tier.kind == "node" else tier.name
        return Setup(
            tracker=self.profile.quality.tracker if self.profile is not None else self.request.tracker,
            slow=slow,
            fast=None if self.request.fast is None else str(self.request.fast),
            kind="declared" if self.flow.machine is not None and not self._applicable else None,
            setup_ns=self._setup_ns,
            plan_ns=self._planning.spent_ns,
            in_place=tuple(self._job.stays),
            unmanaged={why: nbytes for why, (_, nbytes) in counters.fallback.items()},
            notes=self.notes,
            script=sys.argv[0] or None,
            buckets=rows_of(self._applying.buckets, self._applying.strangers),
        )


def _under_way() -> bool:
    """Whether a call of a session runs further up on this thread: a signal's handler may call us from within it."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is Session._wholly.__code__:
            return True
    return False
