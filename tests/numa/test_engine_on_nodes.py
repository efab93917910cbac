"""The engine on real nodes: pages are where the plan has them, and every byte is right."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES
from sentinel.system import numa
from sentinel.system.topology import topology
from tests.builders import MIB, act, make_profile, param
from tests.unit.engine_builders import Running, applied, emulated_machine, transient_plan

pytestmark = pytest.mark.needs("native")

# a and b take turns beside a transient that is demoted while it lives.
PROFILE = make_profile([param("a", MIB, [1, 2]), param("b", MIB, [5, 6]), act("x", MIB // 2, 2, 7, [6])], 8)
MOVES = [(0, 0, 1, 3, 4), (2, 0, 1, 3, 4), (1, 1, 0, 4, 5), (2, 1, 0, 5, 6), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)]
BUDGET = 3 * MIB // 2


class Arena:
    """Private memory at the plan's addresses, with known bytes."""

    def __init__(self, plan: Plan, *, huge: bool = False) -> None:
        self.plan = plan
        self.map = mmap.mmap(-1, plan.extent_bytes + 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self.map)
        start = ctypes.addressof(self._anchor)
        self.base = -(-start // (2 * MIB)) * 2 * MIB
        self._first = self.base - start
        numa.bind(self.base, plan.extent_bytes, topology().fast)
        self.map[:] = bytes(i % 251 for i in range(4096)) * (len(self.map) // 4096)
        self.expected = bytes(self.map)

    def ranges(self, block: int) -> list[tuple[int, int]]:
        spec = self.plan.blocks[block]
        return [(self.base + spec.offset, spec.nbytes)]

    def discard(self, offset: int, nbytes: int) -> None:
        self.map.madvise(mmap.MADV_DONTNEED, self._first + offset, nbytes)

    def close(self) -> None:
        self._anchor = None
        self.map.close()


@pytest.fixture
def plan() -> Plan:
    return transient_plan(PROFILE, [1, 1, 0], MOVES, fast_bytes=BUDGET)


@pytest.fixture
def arena(plan: Plan) -> Iterator[Arena]:
    made = Arena(plan)
    yield made
    made.close()


def node_machine(slow: int) -> Machine:
    machine = emulated_machine(BUDGET, slow_node=slow)
    return replace(machine, tiers=(replace(machine.tiers[0], node=topology().fast), machine.tiers[1]))


def walk(running: Running, steps: int) -> None:
    for _ in range(steps):
        for layer in [*range(1, 8), 0]:
            running.tick(layer)
            running.let_land()


def test_on_one_node_all_is_there_already_and_the_books_balance(plan: Plan, arena: Arena) -> None:
    with applied(plan, PROFILE, node_machine(topology().fast), strict=True, ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 3)
        run = running.engine.end_run()
        held = running.engine._mover.held()
    outcomes = {OUTCOMES[outcome] for outcome in run.migrations["outcome"]}
    assert outcomes == {"already there"}
    assert not run.emulated
    assert run.counters["migrated_bytes"] == run.counters["slow_ns"] == run.counters["injected_ns"] == 0
    assert run.layers["fast_bytes"].max() <= BUDGET
    assert held.fast_bytes + held.slow_bytes == 2 * MIB
    assert bytes(arena.map) == arena.expected


def test_a_node_that_is_not_there_costs_a_warning_and_no_byte(plan: Plan, arena: Arena) -> None:
    with applied(plan, PROFILE, node_machine(1000), ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 2)
        run = running.engine.end_run()
    assert bytes(arena.map) == arena.expected
    assert run.counters["failed"] >= 2
    assert run.counters["stayed_ENODEV"] >= 2 * MIB // 4096
    assert run.counters["overflow_bytes"] > 0  # a and b could not leave: said, not hidden
    assert {int(row["errno"]) for row in run.migrations if row["errno"]} == {errno.ENODEV}
    assert "No such device" in running.said[0]


@pytest.mark.needs("two nodes")
def test_pages_follow_the_plan_and_come_home_at_the_end(plan: Plan, arena: Arena) -> None:
    host = topology()
    fast, slow = host.fast, host.slower[0]
    engine_args = {"strict": True, "ranges": arena.ranges}

    def places() -> list[int]:
        return [numa.bytes_on(fast, arena.ranges(block)) for block in range(3)]

    with applied(plan, PROFILE, node_machine(slow), **engine_args) as running:
        running.let_land()
        assert places() == [MIB, 0, MIB // 2]  # a was promoted for layer 1, b is slow
        for _ in range(3):
            for layer in [*range(1, 8), 0]:
                running.tick(layer)
                running.let_land()
                if layer == 3:
                    assert places() == [0, 0, 0]
                if layer == 6:
                    assert places() == [0, MIB, MIB // 2]
        run = running.engine.end_run()
    assert places()[:2] == [MIB, MIB]
    assert bytes(arena.map) == arena.expected
    assert run.layers["fast_bytes"].max() <= BUDGET
    assert run.counters["migrated_bytes"] > 0
    assert run.counters["overflow_bytes"] == 0


@pytest.mark.needs("two nodes")
def test_a_dead_block_that_had_moved_goes_home_by_discard(arena: Arena) -> None:
    plan = transient_plan(PROFILE, [1, 1, 0], MOVES[:2] + MOVES[4:], fast_bytes=BUDGET)  # x dies in slow memory
    with applied(plan, PROFILE, node_machine(topology().slower[0]), strict=True, ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 2)
    assert running.discarded == [(plan.blocks[2].offset, plan.blocks[2].nbytes)] * 2


@pytest.mark.parametrize("spare_bytes", [0, MIB // 2, 4 * MIB])
def test_what_dead_blocks_leave_in_fast_memory_is_what_is_held(spare_bytes: int) -> None:
    """Three blocks take turns at addresses that overlap. Whoever is alive writes all its pages; the rest of what is
    resident are pages kept for the next tenant, and held as such."""
    names = [act("x", MIB, 0, 2), act("y", MIB // 2, 2, 3), act("z", MIB, 4, 6)]
    profile = make_profile(names, 8)
    plan = transient_plan(profile, [0, 0, 0], (), fast_bytes=MIB)
    at = [0, 0, MIB // 4]
    blocks = tuple(replace(block, offset=offset) for block, offset in zip(plan.blocks, at, strict=True))
    plan = replace(plan, blocks=blocks, capacity_bytes=(MIB + spare_bytes, 1 << 40))
    arena = Arena(plan)
    arena.discard(0, plan.extent_bytes)
    everything = [(arena.base, plan.extent_bytes)]
    most, machine = 0, node_machine(topology().fast)
    kept = {"discard": arena.discard, "ranges": arena.ranges, "strict": True}
    with applied(plan, profile, machine, **kept) as running:
        for layer in [*range(1, 8), 0] * 3:
            running.tick(layer)
            for block in plan.blocks:
                if block.start <= layer < block.stop:
                    ctypes.memset(arena.base + block.offset, layer, block.nbytes)
            held = running.engine._mover.held().fast_bytes
            assert numa.bytes_on(topology().fast, everything) == held
            most = max(most, held)
        counters = running.engine.so_far().counters
    assert most <= MIB + spare_bytes
    assert bool(counters.get("discarded_bytes")) == (spare_bytes < MIB // 4)
    assert counters["kept_bytes"] > 0
    arena.close()


@pytest.mark.needs("two nodes")
def test_huge_pages_move_as_such() -> None:
    """Whole after each move, and every page accounted for."""
    profile = make_profile([param("a", 4 * MIB, [1, 2]), param("b", 6 * MIB, [5, 6])], 8)
    moves = [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)]
    plan = transient_plan(profile, [1, 1], moves, fast_bytes=6 * MIB)
    arena = Arena(plan, huge=True)
    huge = huge_bytes(arena.base)
    assert huge == 10 * MIB
    with applied(plan, profile, node_machine(topology().slower[0]), strict=True, ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 3)
        assert huge_bytes(arena.base) == huge
        run = running.engine.end_run()
    assert {OUTCOMES[outcome] for outcome in run.migrations["outcome"]} <= {"done", "late"}
    assert (run.migrations["moved_bytes"] == run.migrations["nbytes"]).all()
    assert [name for name in run.counters if name.startswith("stayed")] == []
    assert bytes(arena.map) == arena.expected
    arena.close()


def huge_bytes(address: int) -> int:
    """Bytes in huge pages of the mapping that holds `address`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low <= address < high
        elif inside and first == "AnonHugePages:":
            return int(rest.split()[0]) << 10
    return 0
