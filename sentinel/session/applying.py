"""Applying: the slots of plans are served, and their migrations carried out, as the ticks come."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sentinel import tiers
from sentinel.core.ending import end_all
from sentinel.core.interrupts import is_interrupt
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.core.step_follower import NONE_BEGINS, Position, StepFollower
from sentinel.core.units import HUGE_PAGE_BYTES, format_bytes, page_ceil
from sentinel.core.uses import with_uses
from sentinel.migration.engine import Engine
from sentinel.migration.handover import Handover
from sentinel.migration.huge_pages import Placed, huge_ranges
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.memory import ManagedMemory, MemoryCounters
from sentinel.runtime import RUNTIME, tell, tell_of_layer
from sentinel.session.binding import Addresses, Homes, SlotTable, arena_start, changed_homes, slot_table
from sentinel.session.planning import Dataflow
from sentinel.session.shapes import Bucket, Likeness, Served
from sentinel.session.training_job import TrainingJob
from sentinel.system import numa
from sentinel.system.progress import warn

MISSED = ("no_slot", "size_differs", "unsynchronised")
"""Why an allocation that the plan should have served was not."""

FEW_STEPS, ASTRAY_SHARE = 2, 0.1
"""The report tells of steps that are out of step if they are more than 2, and more than a tenth of all. Fewer may be
those in which a plan was taken in or changed."""


class Ended(NamedTuple):
    """A step that has ended. `known`: from its first tick on it asked for what its bucket's plan expects; before may
    lie a validation, or whatever else is done between steps. `missed`: the share of its bytes that found no slot."""

    known: bool
    missed: float


class _Asked(NamedTuple):
    asked: int
    missed: int
    fitted: int
    unlike: int


def _asked(before: MemoryCounters, now: MemoryCounters) -> _Asked:
    """Bytes asked for between two looks at the counters."""
    missed = sum(now.fallback.get(why, (0, 0))[1] - before.fallback.get(why, (0, 0))[1] for why in MISSED)
    asked = missed + now.served_bytes - before.served_bytes
    return _Asked(asked, missed, now.fitted_bytes - before.fitted_bytes, now.unlike_bytes - before.unlike_bytes)


class Applying:
    """Carries out the plans of all buckets on `memory`, one at a time: `add`, `serve`, `start`, a `tick` at each
    layer, `rest` while a step is recorded, `end`. `machine` says where tiers are,
    `bytes_per_s` how fast migrations between nodes may go (0: no limit).

    `current` is the bucket of the step that runs. The allocator changes tables as soon as sizes tell that a step is
    another bucket's; with the next tick its engine takes over, from the first layer if that was in time.
    """

    def __init__(
        self, memory: ManagedMemory, machine: Machine, job: TrainingJob, follower: StepFollower, bytes_per_s: int = 0
    ) -> None:
        self._memory, self._machine, self._job, self._follower = memory, machine, job, follower
        self._bytes_per_s = bytes_per_s
        self.buckets: list[Bucket] = []
        self.strangers = Served()  # steps of shapes that no bucket knows
        self._current = 0
        self._joined = True  # the current plan was there as the step began; else it is followed from the next one on
        self._handover: Handover | None = None  # of the engine that rests
        self._before = memory.counters()  # as the step began
        self._inside: MemoryCounters | None = None  # as its first layer ended
        self._on_nodes = any(tier.node is not None for tier in machine.tiers)
        self._homes: Homes = ()
        self._left_out = ""  # what was said of slots beyond the arena
        self._said: list[str] = []  # as engines ended
        self._between: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    @property
    def current(self) -> Bucket:
        """The bucket whose plan is carried out."""
        return self.buckets[self._current]

    @property
    def flows(self) -> list[Dataflow]:
        """Those of all buckets."""
        return [bucket.flow for bucket in self.buckets]

    @property
    def main(self) -> Bucket:
        """The bucket of most steps."""
        return max(self.buckets, key=lambda bucket: bucket.served.steps)

    def run(self) -> Run | None:
        """What the plan of most steps did; its counters tell how much the others moved too. None if nothing ran."""
        if not self.buckets or (run := self.main.run()) is None:
            return None
        others = [other for bucket in self.buckets if bucket is not self.main and (other := bucket.run()) is not None]
        nbytes = run.counters.migrated_bytes_by_other_plans
        nbytes += sum(o.counters.migrated_bytes + o.counters.migrated_bytes_by_other_plans for o in others)
        return replace(run, counters=replace(run.counters, migrated_bytes_by_other_plans=nbytes))

    def notes(self) -> list[str]:
        """What a report must say of slots beyond the arena and, unless they are few, of steps that no plan follows."""
        told = [*([self._left_out] if self._left_out else []), *self._said]
        runs = [run for bucket in self.buckets if (run := bucket.run()) is not None]
        steps = sum(run.counters.steps for run in runs)
        astray = sum(run.counters.steps_out_of_step for run in runs)
        if astray <= max(FEW_STEPS, steps * ASTRAY_SHARE):
            return told
        others = f"{astray} of {steps} applied steps did not tick like the profiled one"
        return [*told, f"{others} (other layers, another order, or cut short): nothing was migrated ahead in them"]

    def bind_fast(self) -> None:
        """What is not placed by a plan is born in the fast tier, if that is a node."""
        if self._machine.fast.node is not None:
            base, _, reserved = self._memory.exclusive_extent()
            numa.bind(base, reserved, self._machine.fast.node)

    def add(self, flow: Dataflow) -> Bucket:
        """One more bucket, for steps of this dataflow."""
        self.buckets.append(Bucket(len(self.buckets), flow))
        return self.buckets[-1]

    def renew(self, bucket: Bucket, flow: Dataflow) -> None:
        """Another plan for `bucket`, whose engine, if it has one, rests or has not taken over.

        The new engine is there before the old one ends: whatever is raised here, the bucket has a plan and an engine.
        """
        ending = bucket.engine
        if ending is None:
            bucket.flow = flow
            return
        engine, ranges = self._made(flow, ending.end_run())
        bucket.flow, bucket.engine, bucket.ranges = flow, engine, ranges
        bucket.executed = self._ended(ending)

    def supersede(self, flow: Dataflow) -> Bucket:
        """One bucket for the steps of this dataflow, in place of all there are, whose engines rest.

        As with `renew`: whatever is raised here, those go on. What they did is in the accounts of the new one.
        """
        for bucket in self.buckets:
            if bucket.engine is not None:
                bucket.engine.end_run()
        engine, ranges = self._made(flow, self.run())
        for bucket in self.buckets:
            self._end_engine(bucket)
        self._current, self.strangers = 0, Served()
        self.buckets[:] = [Bucket(0, flow, engine=engine, ranges=ranges)]
        return self.buckets[0]

    def clear(self) -> None:
        """There is no plan any more."""
        self.end()
        self.buckets.clear()
        self._current = 0

    def serve(self, bucket: Bucket) -> None:
        """From now on slots are served: those of `bucket` until a step tells otherwise."""
        self._current = bucket.number
        if tiers.on_paper(self._machine):
            return
        for each in self.buckets:
            table = slot_table(each.plan, self._memory.placement_bytes)
            each.homes = table.homes
            self._note_left_out(table)
            place = self._memory.place_also if each.number else self._memory.place
            place(table.keys, table.offsets, table.nbytes, table.extent_bytes)
        self._memory.use_table(bucket.number)
        self._memory.set_huge_pages(self._huge_ranges())
        self._bind(bucket.homes)
        self._between = self._changes_between() if self._on_nodes else {}
        self._memory.tick(self._follower.layer)
        self._memory.reset_peaks()
        self._memory.trim()
        self._before = self._memory.counters()

    def _huge_ranges(self) -> list[tuple[int, int]]:
        """What may be huge pages: all where nothing ever moves nor is dropped, else what does so as a whole."""
        nbytes, plans = self._memory.placement_bytes, [bucket.plan for bucket in self.buckets]
        if not tiers.moves_pages(self._machine) and not any(plan.migrations for plan in plans):
            extent = max(plan.extent_bytes - arena_start(plan) for plan in plans)
            whole = min(max(extent, 0), nbytes) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            return [(0, whole)] if whole else []
        return huge_ranges([Placed(plan, arena_start(plan)) for plan in plans], nbytes)

    def start(self) -> None:
        """From now on the migrations of the current bucket's plan are carried out: in this step if layer 0 is under
        way, else from the next one on."""
        engine = self._engine_of(self.current)
        self._joined = in_step = self._follower.in_first_layer
        if self._handover is not None:
            self._handover = replace(self._handover, began_ns=time.monotonic_ns())
            self._take_over(engine, in_step=in_step)
        else:
            engine.start()
            if not in_step:
                engine.begin_layer(NONE_BEGINS)
        self._show()
        if in_step:
            tell_of_layer(0, ended=False)
        self._before = self._memory.counters()

    def rest(self) -> None:
        """Nothing is migrated from now on until `start`; bytes stay where they are."""
        self._handover = self._engine_of(self.current).hand_over()

    def pages_are_replaced(self) -> None:
        """While this rests, a page tracker replaces all pages of persistent tensors, by the memory policy at the first
        of their addresses: that of fast memory from now on, there and everywhere."""
        if self._handover is not None and self._on_nodes:
            self.bind_fast()
            nodes = [tier for tier, each in enumerate(self._machine.tiers) if each.node is not None]
            self._handover = self._handover.born_again(nodes)

    def tick(self, at: Position) -> bool:
        """A tick: slots are those of the layer under way from now on. Returns whether that is layer 0: a step has
        ended."""
        self._memory.tick(self._follower.layer)
        if not self._joined:
            self._joined = at.ended is not None
            at = Position(at.layer, "cut short") if self._joined else NONE_BEGINS
        if self._memory.table != self._current:
            at = self._change(at)
        bucket = self.buckets[self._current]
        engine = bucket.engine or self._engine_of(bucket)
        layer, ended = at
        if layer == 1:
            self._inside = self._memory.counters()
        if layer is not None and RUNTIME.watches:
            tell_of_layer(layer, ended=ended != "cut short")
        engine.begin_layer(at)
        return layer == 0

    def end_step(self) -> Ended:
        """A step of the current bucket has ended, or a trial of one."""
        now = self._memory.counters()
        step, inside = _asked(self._before, now), _asked(self._inside or self._before, now)
        self._before, self._inside = now, None
        total = max(inside.asked, 1)
        known = Likeness(inside.unlike / total, inside.missed / total).known
        (self.current.served if known else self.strangers).add(step.asked, step.missed, step.fitted)
        return Ended(known, step.missed / max(step.asked, 1))

    def end(self) -> None:
        """What was migrated comes home, and no range of addresses has one; slots are served until the memory is told
        otherwise."""
        if not self.buckets:
            return
        engines = [partial(self._end_engine, bucket) for bucket in reversed(self.buckets)]
        end_all(self._bring_handover_home, *engines, lambda: self._bind(()))

    def _bring_handover_home(self) -> None:
        engines = [bucket.engine for bucket in (self.current, *self.buckets) if bucket.engine is not None]
        given, self._handover = self._handover, None
        if given is not None and engines:  # any of them brings home what it finds by its address
            engines[0].bring_home(given)

    def _change(self, at: Position) -> Position:
        """The step that runs is another bucket's. Returns what its engine is to be told of the tick."""
        self.rest()
        before, self._current = self._current, self._memory.table
        self._homes = self.current.homes
        if self._on_nodes:
            self._bind_ranges(self._between[before, self._current])
        in_time = at == Position(1)
        self._take_over(self._engine_of(self.current), in_step=in_time)
        self.current.taken_over += 1
        self._show()
        if in_time or at.ended == "cut short":
            return at
        self._joined = self._follower.in_first_layer
        return Position(0, "cut short") if self._joined else NONE_BEGINS

    def _take_over(self, engine: Engine, *, in_step: bool) -> None:
        """`engine` gets what the one that rests left; kept until here, lest it be lost where there is no engine."""
        given, self._handover = self._handover, None
        assert given is not None
        engine.take_over(given, in_step=in_step)

    def _show(self) -> None:
        """Observers are told which plan is carried out."""
        plan, machine, ranges = self.current.plan, self.current.flow.machine, self.current.ranges
        if machine is not None and ranges is not None:
            tell(lambda each: each.plan_applied(plan, machine, ranges))

    def _note_left_out(self, table: SlotTable) -> None:
        if table.left_out:
            self._left_out = (
                f"{table.left_out} tensors of the plan ({format_bytes(table.left_out_bytes)}) need more than the"
                f" {format_bytes(self._memory.placement_bytes)} of addresses that this host grants: they come from"
                " malloc and are not placed"
            )

    def _engine_of(self, bucket: Bucket) -> Engine:
        if bucket.engine is None:
            bucket.engine, bucket.ranges = self._made(bucket.flow, bucket.executed)
        return bucket.engine

    def _made(self, flow: Dataflow, before: Run | None) -> tuple[Engine, Callable[[int], list[tuple[int, int]]]]:
        """An engine for the plan of `flow`, whose steps ran as `before` until now; and where the plan's blocks are."""
        plan, machine = flow.plan, flow.machine
        assert plan is not None
        assert machine is not None
        plan = with_uses(plan, flow.profile)
        arena = self._memory.placement_base, self._memory.placement_bytes
        mapped = Addresses(plan, arena, self._managed(plan))
        start = arena_start(plan)

        job = JobMemory(
            mapped.ranges,
            warn=partial(warn, stacklevel=3),
            discard=lambda offset, nbytes: self._memory.discard(offset - start, nbytes),
            unmanaged_bytes=lambda: self._memory.counters().unmanaged_peak_bytes,
            bytes_per_s=self._bytes_per_s,
        )
        return Engine(plan, machine, job, before), mapped.ranges

    def _managed(self, plan: Plan) -> dict[str, int]:
        """Where the persistent tensors of `plan` are. One that was replaced since may be elsewhere, or smaller than its
        slot: pages beyond it are another's."""
        wanted = {slot.name: slot.nbytes for slot in plan.slots if slot.key is None}
        held, found = self._job.storage_bytes(), self._job.addresses()
        return {
            name: at
            for name, at in found.items()
            if self._memory.contains(at) and page_ceil(held[name]) >= wanted.get(name, 0)
        }

    def _changes_between(self) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """What has another home where one bucket's plan follows on another's: found here, lest a tick walk them all."""
        pairs = itertools.permutations(self.buckets, 2)
        return {(one.number, other.number): changed_homes(one.homes, other.homes) for one, other in pairs}

    def _end_engine(self, bucket: Bucket) -> None:
        if bucket.engine is not None:
            bucket.executed = self._ended(bucket.engine)
            bucket.engine = None

    def _ended(self, engine: Engine) -> Run:
        """What it did, once it brought home what it had moved; that is in it."""
        try:
            engine.end_run()
            engine.restore()
            return engine.end_run()
        except Exception as error:  # books that an interrupt cut short; no byte is lost
            if is_interrupt(error):
                raise
            self._said.append(f"when the movers ended, some blocks could not be moved back: {error}")
        return engine.so_far()

    def _bind(self, homes: Homes) -> None:
        """Pages are born on the nodes of `homes` from now on, and those of other ranges on any."""
        if self._on_nodes:
            self._bind_ranges(changed_homes(self._homes, homes))
        self._homes = homes

    def _bind_ranges(self, changed: Sequence[tuple[int, int, int]]) -> None:
        """These ranges have another home from now on. Their pages go first, those of tensors as these are freed: they
        are not where they would be counted. A range with a policy is not balanced away; one without a home has none."""
        for offset, nbytes, tier in changed:
            self._memory.discard(offset, nbytes)
            node = self._machine.tiers[tier].node if tier >= 0 else None
            if node is not None:
                numa.bind(self._memory.placement_base + offset, nbytes, node)
            else:
                numa.unbind(self._memory.placement_base + offset, nbytes)


def nothing_ran(plan: Plan | None) -> Run:
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
