"""Emulated machines, plans with transients, and a step's ticks, for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.machine import Machine, TierKind
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.step_follower import Position
from sentinel.core.units import PAGE_BYTES, page_ceil
from sentinel.core.uses import with_uses
from sentinel.migration.clock import Clock
from sentinel.migration.engine import Engine
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Move
from tests.builders import make_machine
from tests.processes import until

INSTANT = 10**15
"""Bytes per second of a link that takes no time."""


def emulated_machine(fast_bytes: int, **more) -> Machine:
    """As `make_machine`, its slow tier emulated. `slow_node` makes it a node instead, and moves real pages."""
    slow_node = more.pop("slow_node", None)
    kind: TierKind = "emulated" if slow_node is None else "node"
    machine = make_machine(fast_bytes, slow_kind=kind, **more)
    fast, slow = machine.tiers
    return replace(machine, tiers=(replace(fast, kind="node", node=0), replace(slow, node=slow_node)))


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


class HandClock:
    """A clock that stands until it is turned, or something sleeps by it."""

    def __init__(self) -> None:
        self.ns = 1
        self.clock = Clock(lambda: self.ns, self._sleep_until)

    def _sleep_until(self, deadline_ns: int) -> None:
        self.ns = max(self.ns, deadline_ns)


@dataclass
class Running:
    """An engine under test. `said`: the warnings it gave. `discarded`: (offset, nbytes) that it asked to discard."""

    engine: Engine
    n_layers: int
    said: list[str] = field(default_factory=list)
    discarded: list[tuple[int, int]] = field(default_factory=list)
    _layer: int | None = 0

    def step(self, times: int = 1) -> None:
        """Whole steps, each ending with the tick that begins layer 0."""
        for _ in range(times):
            self.tick(*range(1, self.n_layers), 0)

    def tick(self, *layers: int) -> None:
        """Some ticks. A layer that does not follow the one before puts the engine out of step, until layer 0 or 1."""
        for layer in layers:
            if self._layer is not None and layer == (self._layer + 1) % self.n_layers:
                self._tell(Position(layer, None if layer else "whole"))
            else:
                self._tell(Position(layer, "cut short") if layer < 2 else Position(None))

    def lose(self) -> None:
        """A tick that the plan does not have."""
        self._tell(Position(None))

    def _tell(self, at: Position) -> None:
        self._layer = at.layer
        self.engine.begin_layer(at)

    def late_promotions(self, *, waited_for: bool) -> None:
        """Where it has the choice, the engine waits for late promotions, or goes on without them: nothing is tried."""
        self.engine._due._trials.wait = lambda layer: waited_for  # type: ignore[method-assign]

    def each_wait_takes(self, wait_ns: int, clock: HandClock) -> None:
        """On `clock`, whatever the engine waits for a promotion takes so long."""
        wait = self.engine._due._await

        def wait_by_hand(late: list[Move]) -> int:
            clock.ns += wait_ns
            return wait(late) + wait_ns

        self.engine._due._await = wait_by_hand  # type: ignore[method-assign]

    def let_land(self) -> None:
        """Wait until nothing is under way."""
        for move in self.engine._moves.all():
            self.engine._mover.wait(move.job)

    def let_start(self) -> None:
        """Wait until a worker has begun with something; it may have ended since, if this thread had to wait."""
        mover, jobs = self.engine._mover, [move.job for move in self.engine._moves.all()]
        ended = mover._call["sn_mover_wait"]

        def begun() -> bool:
            return bool(mover.held().in_flight_bytes) or not all(ended(mover._handle.value, job, 0) for job in jobs)

        until(lambda: not jobs or begun(), 5e-4)


@contextmanager
def applied(plan: Plan, profile: Profile | None, machine: Machine, **more) -> Iterator[Running]:
    """A started engine, restored at the end."""
    said: list[str] = []
    discarded: list[tuple[int, int]] = []

    drop = more.pop("discard", None)

    def discard(offset: int, nbytes: int) -> int:
        discarded.append((offset, nbytes))
        return nbytes if drop is None else drop(offset, nbytes)

    more.setdefault("ranges", lambda block: [])
    before = more.pop("before", None)
    engine = Engine(with_uses(plan, profile), machine, JobMemory(warn=said.append, discard=discard, **more), before)
    engine.start()
    try:
        yield Running(engine, plan.n_layers, said, discarded)
    finally:
        engine.restore()


@st.composite
def migrating_plans(draw: st.DrawFn, profile: Profile) -> Plan:
    """A lawful plan in which as many blocks migrate as the drawn budget and layers allow.

    In half of them every migration is due one layer after it starts.
    """
    length = profile.n_layers
    capacity = draw(st.integers(1, 200)) * PAGE_BYTES
    snug = draw(st.booleans())
    tiers = [1] * len(profile.names)
    moves: list[tuple[int, int, int, int, int]] = []
    plan = transient_plan(profile, tiers, fast_bytes=capacity)
    for block in range(len(tiers)):
        cuts = sorted(draw(st.lists(st.integers(0, 2 * length), min_size=4, max_size=4)))
        if snug:
            cuts[1], cuts[3] = cuts[0] + 1, cuts[2] + 1
        down_first = draw(st.booleans())
        for tier in (0, 1):
            more = _alternating(block, cuts, down_first, length, draw(st.booleans()))
            tried = [*tiers[:block], tier, *tiers[block + 1 :]]
            ordered = sorted([*moves, *more], key=lambda move: (move[3], move[2] == 0))
            candidate = transient_plan(profile, tried, ordered, fast_bytes=capacity)
            try:
                check(candidate)
            except PlanError:
                continue
            plan, tiers, moves = candidate, tried, ordered
            break
    return plan


def _alternating(
    block: int, cuts: list[int], down_first: bool, length: int, both: bool
) -> list[tuple[int, int, int, int, int]]:
    """One or two moves of a block: it starts at one cut and is due at the next."""
    down, up = (block, 0, 1), (block, 1, 0)
    first, second = (down, up) if down_first else (up, down)
    found = [(*first, cuts[0] % length, cuts[0] % length + cuts[1] - cuts[0])]
    if both:
        found.append((*second, cuts[2] % length, cuts[2] % length + cuts[3] - cuts[2]))
    return found
