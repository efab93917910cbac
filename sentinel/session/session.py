"""Session: profile one step, plan, apply, and remember what happened for the report.

States, in order:
  RECORDING   between start_profile() and end_profile(): one step is observed
  WAITING     a whole step must be recorded anew; it begins at the ring's first tick
  RING        that step, from first tick to first tick
  TRYING      a saved plan is in place, and is checked against the step before its migrations start
  APPLYING    the plan is applied: ticks drive the engine
  DECLARED    there is a plan, but nothing to apply it to
  ENDED       stock allocation is back
"""

from __future__ import annotations

import enum
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sentinel import files, planner, simulator
from sentinel.core.attribution import attribute
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.laws import check
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan, block_uses
from sentinel.core.profile import Profile
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.core.trace import LayerId, Phase, Trace
from sentinel.core.units import format_bytes, parse_budget
from sentinel.migration.adopt import adopt
from sentinel.migration.engine import Engine
from sentinel.migration.memory import ManagedMemory, MemoryCounters
from sentinel.profiler import annotate, backward, names, ticks
from sentinel.profiler.layers import LayerClock
from sentinel.profiler.pages.choice import TRACKERS, choose
from sentinel.profiler.pages.protocol import AddressRange, PageSamples, PageTracker
from sentinel.profiler.record import StepRecorder
from sentinel.reports import Report, Setup, build_report
from sentinel.session.binding import Addresses, arena_start, slot_table
from sentinel.session.request import Request, load_plan, machine_of
from sentinel.system import numa

REFINE_STEPS = 4
"""After so many applied steps, layer times are taken from them: the recorded step paid for its first touches."""
REFINE_GAIN = 0.98
"""A plan made anew with those times is applied if it is predicted to take at most this share of the present one's."""
BOUND_SECONDS = 10.0
"""A report waits at most so long for the bound."""
REPROFILE_STEPS = 100
"""A new dataflow is profiled again at most every so many steps, and"""
REPROFILES = 10
"""at most so many times."""
FALLBACK_SHARE = 0.4
"""A step of which more than this share of bytes found no slot runs another dataflow than planned."""


class State(enum.Enum):
    """See the module's docstring."""

    RECORDING = "recording"
    WAITING = "waiting"
    RING = "ring"
    TRYING = "trying"
    APPLYING = "applying"
    DECLARED = "declared"
    ENDED = "ended"


class Session:
    """One cycle of profile, plan and apply. It is the sink of ticks while it runs; one thread calls it."""

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.request = request
        self.state = State.ENDED
        self.plan: Plan | None = None
        self.profile: Profile | None = None
        self.trace: Trace | None = None
        self.machine: Machine | None = None
        self.executed: Run | None = None
        self.simulated: Run | None = None
        self._models, self._optimizers = list(models), list(optimizers)
        self._handles: list[RemovableHandle] = []
        self._clock = LayerClock()
        self._stays: list[tuple[str, int, str]] = []
        self._notes: list[str] = []
        self._setup_ns = self._plan_ns = 0
        self._steps = self._reprofiles = 0
        self._profiled_at = 0
        self._step_began: MemoryCounters | None = None
        self._counters: MemoryCounters | None = None  # at the end
        self._engine: Engine | None = None
        self._in_step = False
        self._heard: list[tuple[str, Phase]] = []  # ticks while TRYING
        self._heard_boundary = False
        self._tracker: PageTracker | None = None
        self._tracking = False
        self._untaken: list[str] = []

    # ---- the user's calls -------------------------------------------------------------------------------

    @property
    def profiling(self) -> bool:
        """Whether `end_profile()` is still to come."""
        return self.state is State.RECORDING

    def open(self) -> None:
        """Begin. Whatever is wrong with the request is raised before anything is changed."""
        began = time.perf_counter_ns()
        given = load_plan(self.request)
        self._machine = machine_of(self.request)
        _check_words(self.request, self._machine)
        self._tracker, self._untaken = _choose(self.request.tracker)
        self._memory = ManagedMemory.install()
        try:
            self._gather()
            if self._machine.fast.node is not None:
                base, _, reserved = self._memory.exclusive_extent()
                numa.bind(base, reserved, self._machine.fast.node)
            self._adopt()
            if given is None:
                self._record(ring=False)
            else:
                self._try(given)
        except BaseException:
            self._close()
            raise
        ticks.sink = self
        self._setup_ns += time.perf_counter_ns() - began

    def end_profile(self) -> Plan:
        """See `sentinel.end_profile`."""
        if self.state is State.TRYING:
            assert self.plan is not None
            saved = self.plan
            self._settle_trial()
            return self.plan or replace(saved, provisional=True)
        if self.state is not State.RECORDING:
            if self.request.plan is not None and self.plan is not None:
                return self.plan
            raise UsageError(
                "end_profile(): the profiled step has ended already", "call it once, after start_profile()"
            )
        began, planned = time.perf_counter_ns(), self._plan_ns
        try:
            ring = self._clock.learn()
            self._plan_from(self._recorded(ring), provisional=self._state_was_born())
        except BaseException:
            self._close()
            raise
        self._setup_ns += time.perf_counter_ns() - began - (self._plan_ns - planned)
        assert self.plan is not None
        return self.plan

    def stop(self) -> Run:
        """See `sentinel.stop`."""
        if self.state in (State.DECLARED, State.ENDED):
            return self.executed or _nothing_ran(self.plan)
        if self.state in (State.RECORDING, State.RING):
            self._notes.append("stopped while a step was recorded: nothing was applied")
        self._close()
        return self.executed or _nothing_ran(self.plan)

    def report(self) -> Report:
        """See `sentinel.report`."""
        if self.profile is None and self.plan is None:
            raise UsageError("report(): no step has been profiled to its end", "call sentinel.end_profile() first")
        self._find_bound()
        executed = self._engine.so_far() if self._engine is not None else self.executed
        return build_report(
            profile=self.profile,
            plan=self.plan,
            machine=self.machine,
            executed=executed and files.with_origin(executed, plan=self.plan or ""),
            simulated=self.simulated and files.with_origin(self.simulated, plan=self.plan or ""),
            setup=self._setup(),
        )

    def _find_bound(self) -> None:
        """The bound that no plan can beat, for the optimality gap; once a plan, and only when a report is asked for."""
        plan, profile, machine = self.plan, self.profile, self.machine
        if plan is None or profile is None or machine is None or plan.bound_step_ns is not None:
            return
        found = planner.bound(profile, machine, time_limit_s=BOUND_SECONDS)
        if found.loose:
            self._notes.append(f"the bound is loose: {found.loose}")
        self.plan = replace(plan, bound_step_ns=int(found.step_ns))

    # ---- ticks ------------------------------------------------------------------------------------------

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink. Whatever goes wrong here ends the session, never the training step that ticked."""
        try:
            self._tick(name, phase, source)
        except Exception as error:
            self._notes.append(f"the session ended by itself: {error}")
            self._close()
            warnings.warn(
                f"sentinel has stopped, training goes on with stock allocation: {error}", RuntimeWarning, stacklevel=2
            )

    def _tick(self, name: str, phase: Phase, source: str) -> None:
        if source == "add_layer" and not self._clock.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        identity = self._clock.identify(name, phase)
        if self.state is State.RECORDING:
            layer = self._clock.layer
            assert layer is not None
            self._end_layer(layer - 1, layer)
            return
        layer = self._clock.advance(identity)
        if self.state is not State.RING:
            self._memory.tick(-1 if self._clock.layer is None else self._clock.layer)
        if self.state is State.APPLYING:
            self._apply_tick(layer)
        else:
            self._watch_tick(layer, identity)

    def step_boundary(self) -> None:
        """See TickSink."""
        self._clock.boundary()
        self._heard_boundary = True

    def _apply_tick(self, layer: int | None) -> None:
        engine = self._engine
        assert engine is not None
        if layer is None:
            engine.out_of_step()
            self._in_step = False
            return
        if not self._in_step:  # back in step at the ring's first tick: the engine starts its step afresh
            engine.begin_layer(0)
            self._in_step = True
        engine.begin_layer(layer)
        if layer == 0:
            self._end_step()

    def _watch_tick(self, layer: int | None, identity: LayerId) -> None:
        """WAITING, RING or TRYING: look for the whole step that is wanted."""
        first = 1 % len(self._clock.ring)
        if self.state is State.TRYING:
            again = bool(self._heard) and (identity.name, identity.phase) == self._heard[0]
            if again and (layer == first or self._heard_boundary):
                self._settle_trial()
            self._heard.append((identity.name, identity.phase))
        elif self.state is State.RING:
            if layer == first:
                self._recorder.tick(0)
                self._end_ring()
            else:
                self._end_layer(len(self._heard), len(self._heard) + 1)
                self._heard.append((identity.name, identity.phase))
        elif layer == first:
            self._heard = [(identity.name, identity.phase)]
            self._record(ring=True)

    def _end_step(self) -> None:
        """An applied step has ended: a dataflow that the plan does not know is profiled anew."""
        self._steps += 1
        if self._steps == self._profiled_at + REFINE_STEPS:
            self._refine()
        share = self._fallback_share()
        if share <= FALLBACK_SHARE or self._steps - self._profiled_at < REPROFILE_STEPS:
            return
        if self._reprofiles == REPROFILES:
            self._reprofiles += 1
            self._notes.append(f"profiled anew {REPROFILES} times; from then on slots were served where they fit")
        if self._reprofiles > REPROFILES:
            return
        self._reprofiles += 1
        self._again(f"step {self._steps}: {share:.0%} of its bytes found no planned slot: a new dataflow")

    def _again(self, why: str) -> None:
        """Give up the present plan and record the next whole step."""
        self._notes.append(f"{why}; the step was profiled anew")
        self._end_engine()
        self._memory.record()
        self.state = State.WAITING

    # ---- recording --------------------------------------------------------------------------------------

    def _gather(self) -> None:
        annotated_models, annotated_optimizers = annotate.annotated()
        self._models += [m for m in annotated_models if not any(m is other for other in self._models)]
        watched = [o for o in self._optimizers if not any(o is other for other in annotated_optimizers)]
        self._handles = [annotate.watch_steps(optimizer) for optimizer in watched]
        self._optimizers += [o for o in annotated_optimizers if not any(o is other for other in self._optimizers)]

    def _persistent(self) -> list[names.Named]:
        return names.persistent_tensors(self._models, self._optimizers)

    def _adopt(self) -> None:
        rows = adopt(self._memory, [(name, tensor) for name, tensor, _ in self._persistent()])
        self._stays = [
            (row.name, row.nbytes, row.reason)
            for row in rows
            if not row.moved and row.nbytes and not self._memory.contains(row.address)
        ]
        self._state_names = self._optimizer_state()

    def _optimizer_state(self) -> frozenset[str]:
        return frozenset(name for name, _, role in self._persistent() if role == "optimizer")

    def _state_was_born(self) -> bool:
        return bool(self._optimizer_state() - self._state_names)

    def _record(self, *, ring: bool) -> None:
        """Start to record: at a step boundary, or (`ring`) at the ring's first tick."""
        layer = 1 if ring else 0
        self._memory.record()
        self._recorder = StepRecorder()
        self._recorder.start(self._models, self._optimizers)
        self.state = State.RING if ring else State.RECORDING
        if self._tracker is not None:
            base, _, reserved = self._memory.exclusive_extent()
            self._tracker.start([AddressRange(base, base + reserved)])
            self._tracking = True
            self._tracker.mark(layer)
        self._memory.tick(layer)
        self._recorder.resume()

    def _end_layer(self, ended: int, begins: int) -> None:
        """A tick of the step that is recorded."""
        self._recorder.tick(ended)
        self._memory.tick(begins)
        if self._tracker is not None:
            self._tracker.mark(begins)
            self._recorder.resume()

    def _recorded(self, ring: tuple[LayerId, ...]) -> Trace:
        """End the recording."""
        self._recorder.stop()
        samples = self._stop_tracking()
        return self._recorder.finish(self._memory.events(), ring, self._persistent(), samples)

    def _stop_tracking(self) -> PageSamples | None:
        if self._tracker is None or not self._tracking:
            return None
        self._tracking = False
        return self._tracker.stop()

    def _end_ring(self) -> None:
        """The ring's first tick has come round. The step may have ticked otherwise than the one before: it counts."""
        began, planned = time.perf_counter_ns(), self._plan_ns
        followed = _clock_of(self._heard)
        if followed.ring != self._clock.ring:
            first = followed.identify(*self._heard[0])
            followed.advance(first)
            self._clock = followed
        self._plan_from(self._recorded(self._clock.ring), provisional=False)
        self._setup_ns += time.perf_counter_ns() - began - (self._plan_ns - planned)

    # ---- planning ---------------------------------------------------------------------------------------

    def _plan_from(self, trace: Trace, *, provisional: bool) -> None:
        """Trace to plan, and apply it; or, if the plan is provisional, wait for the next whole step."""
        self.trace = trace
        profile = replace(attribute(trace), provisional=provisional)
        self.profile = files.with_origin(profile, trace=trace)
        began = time.perf_counter_ns()
        footprint = planner.footprint_bytes(self.profile)
        self.machine = self._with_budget(footprint)
        self.plan = self._planned(self.profile, self.machine)
        self._plan_ns += time.perf_counter_ns() - began
        self.simulated = simulator.simulate(self.plan, self.profile, self.machine, steps=2)
        if provisional:
            self._notes.append("optimizer state was born in the profiled step, so the next whole step was profiled too")
            self.state = State.WAITING
            return
        self._profiled_at = self._steps
        self._place(self.plan)
        self._apply(self.plan)

    def _refine(self) -> None:
        """Layer times are those of the first applied steps from now on; where another plan is better, switch to it."""
        engine, plan, machine = self._engine, self.plan, self.machine
        if engine is None or plan is None or machine is None or self.profile is None:
            return
        layer_ns = plain_layer_ns(engine.so_far(), self.profile.n_layers)
        if layer_ns is None:
            return
        began = time.perf_counter_ns()
        self.profile = replace(self.profile, layer_ns=layer_ns, step_ns_plain=int(layer_ns.sum()))
        better = self._planned(self.profile, machine)
        kept = simulator.simulate(plan, self.profile, machine, steps=2)
        self.simulated = simulator.simulate(better, self.profile, machine, steps=2)
        # On real nodes a switch would bring all bytes home first, beyond the budget: there the plan stays.
        switch = machine.fast.node is None and (self.simulated.step_ns or 0) < REFINE_GAIN * (kept.step_ns or 0)
        self._plan_ns += time.perf_counter_ns() - began
        if not switch:
            self.simulated = kept
            self.plan = files.with_origin(plan, profile=self.profile, machine=machine)
            return
        self._notes.append(f"planned anew after {REFINE_STEPS} applied steps, with their layer times")
        self._end_engine()
        self.plan = better
        self._place(better)
        self._apply(better)

    def _planned(self, profile: Profile, machine: Machine) -> Plan:
        plan = planner.plan(profile, machine, policy=self.request.policy)
        plan = replace(plan, uses=block_uses(plan, profile), provisional=profile.provisional)
        check(plan, profile, machine)
        return files.with_origin(plan, profile=profile, machine=machine)

    def _with_budget(self, footprint_bytes: int) -> Machine:
        if self.request.fast is None:
            return self._machine
        budget = parse_budget(self.request.fast, footprint_bytes)
        fast = self._machine.fast
        if fast.kind == "node" and budget > fast.capacity_bytes:
            raise UsageError(
                f"fast={self.request.fast!r}: {format_bytes(budget)} of fast memory are asked for,"
                f" {fast.name} has {format_bytes(fast.capacity_bytes)}",
                "ask for less",
            )
        return self._machine.with_fast_capacity(budget)

    # ---- applying ---------------------------------------------------------------------------------------

    def _place(self, plan: Plan) -> None:
        """From now on the plan's slots are served."""
        if not _applicable(self._machine):
            return
        table = slot_table(plan)
        huge = not plan.migrations  # where nothing moves, pages may as well be large
        self._memory.place(table.keys, table.offsets, table.nbytes, table.extent_bytes, huge=huge)
        for offset, nbytes, tier in table.homes:  # what is born where; a range with a policy is not balanced away
            node = self._machine.tiers[tier].node
            if node is not None:
                numa.bind(self._memory.placement_base + offset, nbytes, node)
        self._memory.tick(self._clock.layer if self._clock.layer is not None else -1)
        self._memory.reset_peaks()
        self._memory.trim()

    def _apply(self, plan: Plan) -> None:
        """From now on the plan's migrations are carried out; layer 0, or the first after it, has begun."""
        if not _applicable(self._machine):
            self._notes.append(
                f"nothing was applied: this host has no slower tier, {self._machine.tiers[1].name} is declared only;"
                f' use slow="emulated:PRESET" to run with injected delays'
            )
            self._close(State.DECLARED)
            return
        assert self.machine is not None
        addresses = {name: t.untyped_storage().data_ptr() for name, t, _ in self._persistent()}
        mapped = Addresses(plan, self._memory.placement_base, addresses)
        self._engine = Engine(
            plan,
            self.profile,
            self.machine,
            ranges=mapped.ranges,
            warn=lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=4),
            discard=self._discard,
            unmanaged_bytes=lambda: self._memory.counters().unmanaged_peak_bytes,
        )
        self._engine.start()
        self._in_step = self._clock.layer == 0
        if not self._in_step:  # planned at the ring's first tick: layer 1 has begun
            self._engine.out_of_step()
        self._step_began = self._memory.counters()
        self.state = State.APPLYING

    def _discard(self, block: int) -> None:
        """The pages of a dead transient block go, so that its next tenant's are born at home."""
        assert self.plan is not None
        dead = self.plan.blocks[block]
        self._memory.discard(dead.offset - arena_start(self.plan), dead.nbytes)

    def _try(self, plan: Plan) -> None:
        """A saved plan: its slots are served at once; its migrations start when the step has proved to be its own."""
        if self.request.fast is not None:
            asked = parse_budget(self.request.fast, plan.footprint_bytes)
            if plan.fast_peak_bytes > asked:
                raise UsageError(
                    f"the saved plan holds up to {format_bytes(plan.fast_peak_bytes)} of fast memory,"
                    f" fast={self.request.fast!r} allows {format_bytes(asked)}",
                    "ask for more, or profile anew without plan=",
                )
            plan = replace(plan, capacity_bytes=(min(asked, plan.capacity_bytes[0]), *plan.capacity_bytes[1:]))
        self.plan = plan
        self.machine = self._machine.with_fast_capacity(plan.capacity_bytes[0])
        if len(plan.tier_names) != len(self.machine.tiers):
            raise PlanError(f"the plan is for {len(plan.tier_names)} tiers, this machine has {len(self.machine.tiers)}")
        self._clock = LayerClock(plan.layers)
        self._heard, self._heard_boundary = [], False
        self._place(plan)
        self.state = State.TRYING
        self._in_step = True
        self._step_began = self._memory.counters()

    def _settle_trial(self) -> None:
        """A step has run on a saved plan's slots: apply the plan if the step was its own, else profile anew."""
        if self.state is not State.TRYING:
            return
        assert self.plan is not None
        born = self._state_was_born()
        self._adopt()
        why = self._mismatch(self.plan)
        if born and not why:  # it found no slots in this step, nor did what came after it: the next one tells
            self._heard, self._heard_boundary = [], False
            self._fallback_share()
            return
        share = self._fallback_share()
        if not why and share > FALLBACK_SHARE:
            why = f"{share:.0%} of its bytes found no planned slot"
        if not why:
            self._apply(self.plan)
            return
        self.plan = None
        self._clock = _clock_of(self._heard)  # what this step ticked is the ring to record
        self._again(f"the saved plan does not match this step ({why})")

    def _mismatch(self, plan: Plan) -> str:
        """Why `plan` is not this step's; "" if it is."""
        if not self._clock.in_step:
            return "its layers are others"
        present = {name: t.untyped_storage().nbytes() for name, t, _ in self._persistent()}
        for slot in plan.slots:
            if slot.key is None and present.get(slot.name) != slot.nbytes:
                return f"{slot.name} has {present.get(slot.name, 'no')} bytes, not {slot.nbytes}"
        return ""

    def _fallback_share(self) -> float:
        """Of the bytes allocated since the last call, the share that should have found a slot and did not."""
        before, now = self._step_began, self._memory.counters()
        self._step_began = now
        if before is None:
            return 0.0
        missed = sum(
            now.fallback.get(why, (0, 0))[1] - before.fallback.get(why, (0, 0))[1]
            for why in ("no_slot", "size_differs", "unsynchronised")
        )
        total = missed + now.served_bytes - before.served_bytes
        return missed / total if total else 0.0

    # ---- the end ----------------------------------------------------------------------------------------

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.end_run()
            self._engine.restore()
            self.executed = self._engine.end_run()  # what was brought back is in it
            self._engine = None

    def _close(self, state: State = State.ENDED) -> None:
        """Stock allocation is back; what lives in managed memory stays valid."""
        if ticks.sink is self:
            ticks.sink = None
        try:
            if self.state in (State.RECORDING, State.RING):
                self._recorder.abandon()
                self._stop_tracking()
            self._end_engine()
        finally:
            self._counters = self._memory.counters()
            self._memory.uninstall()
            self._models, self._optimizers = [], []
            while self._handles:
                self._handles.pop().remove()
            self.state = state

    def _setup(self) -> Setup:
        counters = self._memory.counters() if self._counters is None else self._counters
        slow = self.request.slow
        if slow == "auto" and self.machine is not None:
            tier = self.machine.tiers[1]
            slow = f"numa:{tier.node}" if tier.kind == "node" else tier.name
        return Setup(
            tracker=self.profile.quality.tracker if self.profile is not None else self.request.tracker,
            slow=slow,
            fast=None if self.request.fast is None else str(self.request.fast),
            kind="declared" if self.machine is not None and not _applicable(self.machine) else None,
            setup_ns=self._setup_ns,
            plan_ns=self._plan_ns,
            in_place=tuple(self._stays),
            unmanaged={why: nbytes for why, (_, nbytes) in counters.fallback.items()},
            notes=(*self._notes, *(f"tracker not taken: {why}" for why in self._untaken), *annotate.notes()),
            script=sys.argv[0] or None,
        )


def _choose(tracker: str) -> tuple[PageTracker | None, list[str]]:
    """The page tracker asked for, None for operators alone; and why more exact ones were not taken."""
    if tracker == "ops":
        return None, []
    if tracker not in ("auto", *TRACKERS):
        raise UsageError(f"there is no tracker {tracker!r}", f"choose one of auto, {', '.join(TRACKERS)}, ops")
    return choose(tracker)


def plain_layer_ns(run: Run, length: int) -> NDArray[np.int64] | None:
    """(L,) median time of each layer over the steps that ran as planned but the first, stalls and delays taken off.

    None without such a step.
    """
    steps = run.steps["step"][run.steps["in_step"]][1:]
    rows = run.layers[np.isin(run.layers["step"], steps)]
    if not len(steps) or len(rows) != len(steps) * length:
        return None
    rows = np.sort(rows, order=["step", "layer"]).reshape(len(steps), length)
    spent = rows["duration_ns"] - rows["stall_ns"] - rows["slow_ns"]
    times: NDArray[np.int64] = np.maximum(np.median(spent, axis=0), 1).astype(np.int64)
    return times


def _clock_of(heard: Sequence[tuple[str, Phase]]) -> LayerClock:
    """A clock that follows the ring of these ticks."""
    clock = LayerClock()
    for name, phase in heard:
        clock.identify(name, phase)
    clock.learn()
    return clock


def _applicable(machine: Machine) -> bool:
    """Whether a plan can be carried out on all of its tiers."""
    return all(tier.kind in ("node", "emulated") for tier in machine.tiers[1:])


def _check_words(request: Request, machine: Machine) -> None:
    """Whatever can be known to be wrong before anything is changed."""
    if request.policy not in planner.POLICIES:
        raise UsageError(
            f"there is no policy {request.policy!r}", f"choose one of {', '.join(sorted(planner.POLICIES))}"
        )
    if request.fast is not None:
        parse_budget(request.fast, machine.fast.capacity_bytes)


def _nothing_ran(plan: Plan | None) -> Run:
    """The Run of a session that applied nothing."""
    return Run(
        kind="executed",
        emulated=False,
        tier_names=plan.tier_names if plan is not None else (),
        fast_capacity_bytes=plan.capacity_bytes[0] if plan is not None else 0,
        steps=np.zeros(0, STEP_DTYPE),
        layers=np.zeros(0, LAYER_DTYPE),
        migrations=np.zeros(0, MIGRATION_DTYPE),
    )
