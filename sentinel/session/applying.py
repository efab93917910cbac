"""Applying: a plan's slots are served, and its migrations carried out, as the ticks come."""

from __future__ import annotations

import warnings

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.migration.engine import Engine
from sentinel.migration.memory import ManagedMemory, MemoryCounters
from sentinel.session import observing
from sentinel.session.binding import Addresses, arena_start, slot_table
from sentinel.session.job import Job
from sentinel.session.planning import Dataflow
from sentinel.system import numa

MISSED = ("no_slot", "size_differs", "unsynchronised")
"""Why an allocation that the plan should have served was not."""


def applicable(machine: Machine) -> bool:
    """Whether a plan can be carried out on all of its tiers."""
    return all(tier.kind in ("node", "emulated") for tier in machine.tiers[1:])


class Applying:
    """Carries out one plan at a time on `memory`: `place`, `start`, a `tick` at each layer, `end`.

    `machine` says where tiers are. `engine` runs between `start` and `end`; `executed` is what the last one did.
    """

    def __init__(self, memory: ManagedMemory, machine: Machine, job: Job) -> None:
        self._memory, self._machine, self._job = memory, machine, job
        self._plan: Plan | None = None
        self._in_step = False
        self._before: MemoryCounters | None = None  # the counters at the last fallback_share()
        self.engine: Engine | None = None
        self.executed: Run | None = None

    def bind_fast(self) -> None:
        """What is not placed by a plan is born in the fast tier, if that is a node."""
        if self._machine.fast.node is not None:
            base, _, reserved = self._memory.exclusive_extent()
            numa.bind(base, reserved, self._machine.fast.node)

    def place(self, plan: Plan, layer: int | None) -> None:
        """From now on the plan's slots are served; `layer` is under way, None if that is not known."""
        self._plan = plan
        if not applicable(self._machine):
            return
        table = slot_table(plan)
        huge = not plan.migrations  # where nothing moves, pages may as well be large
        self._memory.place(table.keys, table.offsets, table.nbytes, table.extent_bytes, huge=huge)
        for offset, nbytes, tier in table.homes:  # what is born where; a range with a policy is not balanced away
            node = self._machine.tiers[tier].node
            if node is not None:
                numa.bind(self._memory.placement_base + offset, nbytes, node)
        self._memory.tick(layer if layer is not None else -1)
        self._memory.reset_peaks()
        self._memory.trim()

    def start(self, flow: Dataflow, layer: int | None) -> None:
        """From now on the migrations of the plan that was placed are carried out.

        `layer` is under way: 0, or another one, and then the engine waits for the next step.
        """
        plan, machine = flow.plan, flow.machine
        assert plan is not None
        assert machine is not None
        self._plan = plan
        mapped = Addresses(plan, self._memory.placement_base, self._job.addresses())
        self.engine = Engine(
            plan,
            flow.profile,
            machine,
            ranges=mapped.ranges,
            warn=lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=4),
            discard=self._discard,
            unmanaged_bytes=lambda: self._memory.counters().unmanaged_peak_bytes,
        )
        self.engine.start()
        if observing.observer is not None:
            observing.observer.applying(plan, machine, mapped.ranges)
        self._in_step = layer == 0
        if not self._in_step:
            self.engine.out_of_step()
        self.fallback_share()

    def tick(self, layer: int | None) -> bool:
        """A tick began `layer`, None while out of step. Returns whether a step of the plan has ended."""
        engine = self.engine
        assert engine is not None
        if layer is None:
            engine.out_of_step()
            self._in_step = False
            return False
        if not self._in_step:  # back in step at the ring's first tick: the engine starts its step afresh
            engine.begin_layer(0)
            self._in_step = True
        elif observing.observer is not None and self._plan is not None:
            length = self._plan.n_layers
            observing.observer.layer_ended((layer - 1) % length, length)
        engine.begin_layer(layer)
        return layer == 0

    def fallback_share(self) -> float:
        """Of the bytes allocated since the last call, the share that should have found a slot and did not."""
        before, now = self._before, self._memory.counters()
        self._before = now
        if before is None:
            return 0.0
        missed = sum(now.fallback.get(why, (0, 0))[1] - before.fallback.get(why, (0, 0))[1] for why in MISSED)
        total = missed + now.served_bytes - before.served_bytes
        return missed / total if total else 0.0

    def so_far(self) -> Run | None:
        """What was executed until now; None if nothing was."""
        return self.engine.so_far() if self.engine is not None else self.executed

    def end(self) -> None:
        """What was migrated comes home; slots are served until the memory is told otherwise."""
        if self.engine is not None:
            self.engine.end_run()
            self.engine.restore()
            self.executed = self.engine.end_run()  # what was brought back is in it
            self.engine = None

    def _discard(self, block: int) -> None:
        """The pages of a dead transient block go, so that its next tenant's are born at home."""
        assert self._plan is not None
        dead = self._plan.blocks[block]
        self._memory.discard(dead.offset - arena_start(self._plan), dead.nbytes)


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
