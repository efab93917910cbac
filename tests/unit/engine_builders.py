"""Emulated machines, plans with transients, and a step's ticks, for tests of the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sentinel.core.machine import Machine, TierKind
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.units import page_ceil
from sentinel.migration.engine import Engine
from tests.builders import make_machine

INSTANT = 10**15
"""Bytes per second of a link that takes no time."""


def emulated_machine(fast_bytes: int, **more) -> Machine:
    """As `make_machine`, its slow tier emulated. `slow_node` makes it a node instead, and moves real pages."""
    slow_node = more.pop("slow_node", None)
    machine = make_machine(fast_bytes, **more)
    fast, slow = machine.tiers
    kind: TierKind = "emulated" if slow_node is None else "node"
    return replace(machine, tiers=(replace(fast, kind="node", node=0), replace(slow, kind=kind, node=slow_node)))


def transient_plan(
    profile: Profile, tiers: Sequence[int], moves: Sequence[tuple[int, int, int, int, int]] = (), *, fast_bytes: int
) -> Plan:
    """A plan with one block a tensor, persistent or transient, each on addresses of its own, born in `tiers[i]`.

    `moves`: (block, source, target, start, due), demotions before promotions in a layer.
    """
    slots, blocks, segments, offset = [], [], [], 0
    for i, (name, row) in enumerate(zip(profile.names, profile.tensors, strict=True)):
        room, lasting = page_ceil(int(row["nbytes"])), bool(row["persistent"])
        key = None if lasting else (int(row["key_layer"]), int(row["key_ordinal"]))
        slots.append(Slot(i, name, key, offset, int(row["nbytes"])))
        blocks.append(Block(offset, room, int(row["start"]), int(row["stop"]), tiers[i], (i,), name, lasting))
        segments.append(Segment(offset, room, tiers[i]))
        offset += room
    return Plan(
        policy="built",
        layers=profile.layers,
        tier_names=("fast", "slow"),
        capacity_bytes=(fast_bytes, 1 << 40),
        segments=tuple(segments),
        slots=tuple(slots),
        blocks=tuple(blocks),
        migrations=tuple(
            Migration(b, s, t, blocks[b].nbytes, start, due, "prefetch" if t == 0 else "evict")
            for b, s, t, start, due in moves
        ),
        footprint_bytes=offset,
        fast_needed_bytes=0,
    )


@dataclass
class Running:
    """An engine under test. `said`: the warnings it gave. `discarded`: the blocks it asked to discard."""

    engine: Engine
    n_layers: int
    said: list[str] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)

    def step(self, times: int = 1) -> None:
        """Whole steps, each ending with the tick that begins layer 0."""
        for _ in range(times):
            for layer in [*range(1, self.n_layers), 0]:
                self.engine.begin_layer(layer)

    def tick(self, *layers: int) -> None:
        """Some ticks."""
        for layer in layers:
            self.engine.begin_layer(layer)

    def let_land(self) -> None:
        """Wait until nothing is under way."""
        for flight in self.engine._flights.all():
            self.engine._mover.wait(flight.job)

    def let_start(self) -> None:
        """Wait until a worker has begun with something."""
        while self.engine._flights.all() and not self.engine._mover.held().in_flight_bytes:
            time.sleep(0.0005)


@contextmanager
def applied(plan: Plan, profile: Profile | None, machine: Machine, **more) -> Iterator[Running]:
    """A started engine, restored at the end."""
    said: list[str] = []
    discarded: list[int] = []
    more.setdefault("ranges", lambda block: [])
    engine = Engine(plan, profile, machine, warn=said.append, discard=discarded.append, **more)
    engine.start()
    try:
        yield Running(engine, plan.n_layers, said, discarded)
    finally:
        engine.restore()
