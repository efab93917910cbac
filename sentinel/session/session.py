"""Session: profile one step, plan, apply, and remember what happened for the report.

Here are the user's calls, and the end, whatever leads to it. The states that a session goes through, and what ticks do
in them, are in state.py and the files that it names; what all states share is in context.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel import tiers
from sentinel.core.ending import end_all
from sentinel.core.errors import UsageError
from sentinel.core.interrupts import is_interrupt
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import Phase, Trace
from sentinel.profiler import backward
from sentinel.profiler.unobserved import without_function_modes
from sentinel.reports import Report
from sentinel.runtime import RUNTIME, tell
from sentinel.session.applying import nothing_ran
from sentinel.session.applying_plans import ApplyingPlans
from sentinel.session.asked_machine import available_bytes, machine_of, notes_on
from sentinel.session.context import SessionContext
from sentinel.session.owner_thread import OwnerThread
from sentinel.session.pinning import fast_bytes_of, pins_of_job
from sentinel.session.planning import Dataflow, Planning
from sentinel.session.profiling import Profiling
from sentinel.session.reporting import Reporting
from sentinel.session.request import Request, load_plan
from sentinel.session.saved_plan import CheckingSavedPlan
from sentinel.session.state import Over, State
from sentinel.session.training_job import TrainingJob
from sentinel.session.whole_step import RecordingStep
from sentinel.system.launched import Launched, launched
from sentinel.system.progress import warn
from sentinel.system.topology import topology

MOST_ATTEMPTS = 16
"""An end that fails is tried again at the calls that follow, 16 times at most."""


class Session:
    """One cycle of profile, plan and apply. One thread calls it.

    It is the sink of ticks from before it changes anything until it has undone all: so whatever cuts it short, Ctrl-C
    included, the next call of any kind finds it and ends it.
    """

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.request = request
        self.state: State = Over.ENDED
        self.stopped = False  # by the user
        self.told = False  # a placing has given its report
        self.who = Launched()  # from `open` on; the script may leave its process group before there is a report
        self._job = TrainingJob(models, optimizers)
        self._notes: list[str] = []
        self._context: SessionContext | None = None  # from `open` on
        self._owner = OwnerThread()
        self._busy = False  # with a call that must be done wholly or undone
        self._stop_asked = False  # within such a call, which ends the session as it ends
        self._to_end: tuple[Callable[[], None], ...] = ()  # undo all that the session does; each may be called again
        self._ends_as = Over.ENDED
        self._attempts = 0  # to end it
        self._reporting: Reporting | None = None  # from `open` on

    # ---- what is known --------------------------------------------------------------------------------------

    @property
    def context(self) -> SessionContext:
        """What the states of the session work with. There is none before `open`."""
        assert self._context is not None, "open() comes first"
        return self._context

    @property
    def profiling(self) -> bool:
        """Whether `end_profile()` is still to come: not in a forked child, where nothing is watched."""
        return isinstance(self.state, Profiling) and RUNTIME.sink is self

    @property
    def applying(self) -> bool:
        """Whether a plan is carried out."""
        return isinstance(self.state, ApplyingPlans)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it is over, and the user has not stopped it."""
        return self.state is Over.DECLARED or (self.state is Over.ENDED and not self.stopped)

    @property
    def flow(self) -> Dataflow:
        """That of most steps, where there are several; without a plan that is applied, of the step recorded last."""
        return Dataflow() if self._context is None else self._context.flow

    @property
    def plan(self) -> Plan | None:
        """What is planned for most steps."""
        return self.flow.plan

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
        return tuple(self._notes) if self._reporting is None else self._reporting.notes()

    # ---- the user's calls -------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin. Whatever is wrong with the request is raised before anything is changed."""
        began = time.perf_counter_ns()
        self.who = launched()
        given = load_plan(self.request)
        machine = machine_of(self.request)

        def beside() -> int:
            return RUNTIME.bytes_beside(machine.fast.node)

        self._notes += notes_on(machine, topology(), self.request.rate_limit)
        available = available_bytes(self.request, machine) + self._job.held_bytes_of(machine.fast)
        planning = Planning(self.request, machine, available + beside(), self._pins, beside)
        planning.check_words()
        self._check_pins(planning, machine)
        context = SessionContext(self._job, machine, planning, self._notes, self.request.bytes_per_s)
        reporting = Reporting(self.request, context, self._owner)
        self._to_end = (  # the last first
            self._job.close,
            context.memory.uninstall,
            reporting.count,
            context.witnessing.end,
            context.applying.end,
            context.recording.close,
            planning.close,
        )
        self._context, self._reporting = context, reporting
        self._wholly(self._begin, (given,))
        context.setup_ns += time.perf_counter_ns() - began

    def _pins(self) -> Pins:
        """What is to be kept fast or slow, by the names that the job's tensors have now."""
        pins, notes = pins_of_job(self.request.pins, self._job)
        self._notes += [note for note in notes if note not in self._notes]
        return pins

    def _check_pins(self, planning: Planning, machine: Machine) -> None:
        """Before anything is changed. Where the loop was found, nobody is there to catch an error: the plan says it."""
        pins = self._pins()
        if RUNTIME.finder is None:
            planning.check_kept_fast(fast_bytes_of(pins, self._job))
        if pins.slow and tiers.on_paper(machine):
            self._notes.append("keep_slow has no effect: this host has no slower memory, nothing is moved.")

    def _begin(self, given: Plan | None) -> None:
        context, on_node = self.context, tiers.moves_pages(self.context.machine)
        RUNTIME.sink = self
        context.recording.choose(self.request.tracker)
        context.memory.activate()
        self._notes += filter(None, [context.memory.note_on_limit()])
        context.job.add_annotated()
        context.applying.bind_fast()
        # a saved plan may cut tensors anywhere, and the kernel moves a huge page as one
        context.memory.let_tensors_have_huge_pages(given is None or not on_node)
        if given is None:
            context.recording.prepare()
        context.job.adopt(context.memory)
        if on_node:
            context.witnessing.begin(context.memory)
        if given is None:
            context.recording.begin(0)
            context.host.begin("profiled")
            self._enter(Profiling(context))
        else:
            self._enter(CheckingSavedPlan(context, given).begin())
        tell(lambda each: each.session_started(context.job.models, context.job.optimizers))

    @property
    def away(self) -> bool:
        """Whether the thread that began the session is another one, and lives."""
        return self._owner.away

    @property
    def cut_short(self) -> bool:
        """Whether a call, or the end, began and went no further: an interrupt came."""
        return self._busy and RUNTIME.sink is self and not self.away and not _under_way()

    def finish_ending(self) -> None:
        """Go on with an end that was cut short, or that failed. Raises nothing but interrupts."""
        self._attempts += 1
        self._owner.hand_over("this call", self.context.memory)
        self._end_quietly()
        if RUNTIME.sink is self and self._attempts >= MOST_ATTEMPTS:
            self._notes.append("it could not clean up: what is left stays until the process ends")
            self._to_end = ()
            self._end_quietly()

    def end_profile(self) -> Plan:
        """See `sentinel.end_profile`."""
        self._owner.hand_over("end_profile()", self.context.memory)
        if isinstance(self.state, CheckingSavedPlan):
            assert self.plan is not None
            saved = self.plan
            self._wholly(self._end_check, (self.state,))
            return self.plan or replace(saved, provisional=True)
        if not isinstance(self.state, Profiling):
            if self.request.plan is not None and self.plan is not None:
                return self.plan
            raise UsageError(
                "end_profile(): the profiled step has ended already", "call it once, after start_profile()"
            )
        self._wholly(self._end_profiling, (self.state,))
        assert self.plan is not None
        return self.plan

    def _end_check(self, checking: CheckingSavedPlan) -> None:
        self._enter(checking.end_step())

    def _end_profiling(self, profiling: Profiling) -> None:
        self.context.memory.give_back()
        self._enter(profiling.end(self._owner.learn(self.context.follower)))

    def stop(self) -> Run:
        """See `sentinel.stop`."""
        if self.state not in (Over.DECLARED, Over.ENDED):
            self._owner.hand_over("stop()", self.context.memory)
            if isinstance(self.state, Profiling | RecordingStep) and not self.context.applying.buckets:
                self._notes.append("stopped while a step was recorded: nothing was applied")
            if self._busy and _under_way():  # an observer calls, or a signal's handler
                self._stop_asked = True
            else:
                self._stop_now()
        self.stopped = True
        executed = None if self._reporting is None else self._reporting.executed()
        return executed or nothing_ran(self.plan)

    def _stop_now(self) -> None:
        try:
            self._wholly(self._close)
        except Exception as error:
            if is_interrupt(error):
                raise
            warn(f"sentinel could not clean up completely, and will try again: {error}", stacklevel=4)

    def report(self, *, bounded: bool = True) -> Report:
        """See `sentinel.report`. `bounded`: after a search for the bound, which may take seconds; and once the session
        is over, the report may make plans for other amounts of fast memory, which takes seconds too. The bound is not
        searched for while the session's thread may take another plan meanwhile."""
        if self._reporting is None or (self.profile is None and self.plan is None):
            raise UsageError("report(): no step has been profiled completely", "call sentinel.end_profile() first")
        over = isinstance(self.state, Over)
        return self._reporting.report(bounded=bounded and (over or not self.away), over=over)

    # ---- ticks ------------------------------------------------------------------------------------------

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        if self._owner.accepts_tick():
            self._guard(self._tick, (name, phase, source))

    def step_boundary(self) -> None:
        """See TickSink."""
        if self._owner.accepts_tick():
            self._guard(self._boundary, end_now=False)  # torch goes through hooks just now, of which some are ours

    def _tick(self, name: str, phase: Phase, source: str) -> None:
        assert self._context is not None
        follower = self._context.follower
        if source == "add_layer" and not follower.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        tick = (name, phase)
        state = self.state.tick(tick, follower.tick(tick))
        if state is not self.state:
            self._enter(state)
        cycle = follower.changed_by(tick)
        if cycle is not None:
            self._enter(self.state.new_cycle(cycle))

    def _boundary(self) -> None:
        """An optimizer has stepped."""
        self.context.memory.give_back()
        cycle = self.context.follower.boundary()
        self.state.boundary()
        if cycle is not None:
            self._enter(self.state.new_cycle(cycle))

    def _enter(self, state: State) -> None:
        if state is Over.DECLARED:
            self._close(Over.DECLARED)
        elif RUNTIME.sink is self:
            self.state = state

    def _guard(self, call: Callable[..., None], arguments: tuple[str, ...] = (), *, end_now: bool = True) -> None:
        """Whatever goes wrong in a tick ends the session, never the training step that ticked. What a signal's handler
        raises there is the program's."""
        if self._busy and self.cut_short:
            self.finish_ending()
            return
        try:
            self._wholly(call, arguments, end_now=end_now)
        except Exception as error:
            self._notes.append(f"the session ended by itself: {str(error) or type(error).__name__}")
            if is_interrupt(error):
                raise
            warn(f"sentinel has stopped, training goes on with stock allocation: {error}", stacklevel=3)

    def _wholly(self, call: Callable[..., None], arguments: tuple[Any, ...] = (), *, end_now: bool = True) -> None:
        """`call`, after which the session goes on; or the session ends, and what was raised goes on.

        Not `end_now`: with the next call, if it is no interrupt. `arguments` are one tuple, since each tick passes them
        on twice: to collect them again each time takes longer than both calls.
        """
        before, self._busy = self._busy, True
        try:
            with without_function_modes():
                call(*arguments)
                if self._stop_asked and end_now:
                    self._close()
        except BaseException as error:
            self.state = Over.ENDING
            if end_now or is_interrupt(error):
                self._end_quietly()
            raise
        self._busy = before  # an observer may tick within a call of ours

    # ---- the end ----------------------------------------------------------------------------------------

    def _close(self, ends_as: Over | None = None) -> None:
        """Stock allocation is back, what lives in managed memory stays valid, and then no tick comes any more.

        May be called again, wherever it was cut short.
        """
        self._ends_as = ends_as or self._ends_as
        self.state = Over.ENDING
        end_all(*reversed(self._to_end))
        self.state = self._ends_as
        if RUNTIME.sink is self:  # until all are told: what cuts that short is made good by the next call
            tell(lambda each: each.session_ended())
            RUNTIME.sink = None
        self._busy = False

    def _end_quietly(self) -> None:
        """`_close`. What it cannot undo is in the notes, and is tried again with the next call."""
        try:
            self._close()
        except Exception as error:
            if is_interrupt(error):
                raise
            self._notes.append(f"as it ended, this went wrong too: {error}")


def _under_way() -> bool:
    """Whether a call of a session, or its end, runs further up on this thread: observers and signals' handlers may call
    us from within it."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code in (Session._wholly.__code__, Session._close.__code__):
            return True
    return False
