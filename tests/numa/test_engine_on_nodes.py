"""The engine on real nodes: pages are where the plan has them, and every byte is right."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES
from sentinel.migration.huge_pages import Placed, huge_ranges
from sentinel.migration.witness import MigrationWitness
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
    """Private memory at the plan's addresses, with known bytes. `huge`: (offset, nbytes) of what is huge pages."""

    def __init__(self, plan: Plan, *, huge: Sequence[tuple[int, int]] = ()) -> None:
        self.plan = plan
        self.map = mmap.mmap(-1, plan.extent_bytes + 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self.map)
        start = ctypes.addressof(self._anchor)
        self.base = -(-start // (2 * MIB)) * 2 * MIB
        self.first = self.base - start
        for offset, nbytes in huge:
            self.map.madvise(mmap.MADV_HUGEPAGE, self.first + offset, nbytes)
        numa.bind(self.base, plan.extent_bytes, topology().fast)
        self.map[:] = bytes(i % 251 for i in range(4096)) * (len(self.map) // 4096)
        self.expected = bytes(self.map)

    def ranges(self, block: int) -> list[tuple[int, int]]:
        spec = self.plan.blocks[block]
        return [(self.base + spec.offset, spec.nbytes)]

    def discard(self, offset: int, nbytes: int) -> int:
        self.map.madvise(mmap.MADV_DONTNEED, self.first + offset, nbytes)
        return nbytes

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
    assert run.counters.migrated_bytes == run.counters.slow_ns == run.counters.injected_ns == 0
    assert run.layers["fast_bytes"].max() <= BUDGET
    assert sum(held.bytes_in) == 2 * MIB
    assert bytes(arena.map) == arena.expected


def test_a_node_that_is_not_there_costs_a_warning_and_no_byte(plan: Plan, arena: Arena) -> None:
    with applied(plan, PROFILE, node_machine(1000), ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 2)
        run = running.engine.end_run()
    assert bytes(arena.map) == arena.expected
    assert run.counters.failed >= 2
    assert run.counters.stayed["ENODEV"] >= 2 * MIB // 4096
    assert run.counters.overflow_bytes > 0  # a and b could not leave: said, not hidden
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
    assert run.counters.migrated_bytes > 0
    assert run.counters.overflow_bytes == 0


@pytest.mark.needs("two nodes")
def test_a_dead_block_that_had_moved_goes_home_by_discard(arena: Arena) -> None:
    plan = transient_plan(PROFILE, [1, 1, 0], MOVES[:2] + MOVES[4:], fast_bytes=BUDGET)  # x dies in slow memory
    with applied(plan, PROFILE, node_machine(topology().slower[0]), strict=True, ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 2)
    assert running.discarded == [(plan.blocks[2].offset, plan.blocks[2].nbytes)] * 2


# Each is moved before it is written as a whole: x goes to slow memory and dies there, y to fast memory and dies there,
# z to slow memory and comes back.
LATE = make_profile([act(name, MIB // 2, 1, 7, [3]) for name in "xyz"], 8)
BORN_IN = [0, 1, 0]
BEFORE_WRITES = [(0, 0, 1, 2, 3), (2, 0, 1, 2, 3), (1, 1, 0, 2, 3), (2, 1, 0, 5, 6)]


class LateArena(Arena):
    """Where nobody has touched a page yet, and each block has the policy of its home. `nodes`: of both tiers."""

    def __init__(self, plan: Plan, nodes: Sequence[int]) -> None:
        super().__init__(plan)
        self.nodes = nodes
        self.discard(0, plan.extent_bytes)
        for block in plan.blocks:
            numa.bind(self.base + block.offset, block.nbytes, nodes[block.tier])

    def write(self, nbytes: int, value: int) -> None:
        """The first bytes of each block."""
        for block in self.plan.blocks:
            ctypes.memset(self.base + block.offset, value, nbytes)

    def tiers(self, nbytes: int) -> list[set[int]]:
        """In which tiers the pages of the first bytes of each block are, -1 where there is none."""
        found = [numa.residency(self.base + block.offset, nbytes) for block in self.plan.blocks]
        return [{self.nodes.index(node) if node >= 0 else -1 for node in each.tolist()} for each in found]

    def born_next(self) -> list[int]:
        """In which tier the next new page of each block would be, the same for its first and its last."""
        ends = [[self.base + b.offset, self.base + b.offset + b.nbytes - 4096] for b in self.plan.blocks]
        first, last = ([numa.policy(address) for address in each] for each in zip(*ends, strict=True))
        assert first == last
        assert {mode for mode, _ in first} == {numa.MPOL_PREFERRED}
        return [self.nodes.index(node) for _, (node,) in first]


@pytest.mark.needs("two nodes")
@pytest.mark.parametrize("early_pages", [0, 1, 57])
@pytest.mark.parametrize("ends", ["restore", "hand over"])
def test_pages_written_after_their_block_was_moved_are_where_it_is(early_pages: int, ends: str) -> None:
    """`early_pages` of each are written before. The next life begins at home again, wherever the last one went."""
    plan = transient_plan(LATE, BORN_IN, BEFORE_WRITES, fast_bytes=4 * MIB)
    nodes, whole, early = (topology().fast, topology().slower[0]), MIB // 2, early_pages * 4096
    arena = LateArena(plan, nodes)
    kept = {"discard": arena.discard, "ranges": arena.ranges, "strict": True}
    with applied(plan, LATE, node_machine(nodes[1]), **kept) as running:

        def tick(layer: int) -> None:
            running.tick(layer)
            running.let_land()
            running.engine._block_mover.collect()

        def are_in(*tiers: int) -> None:
            assert arena.tiers(whole) == [{tier} for tier in tiers]
            held = running.engine._mover.held()
            there = [numa.bytes_on(node, [(arena.base, plan.extent_bytes)]) for node in nodes]
            assert there == list(held.bytes_in[:2])

        for value in range(1, 4):
            tick(1)
            arena.write(early, value)
            assert arena.tiers(early) == [{tier} for tier in BORN_IN] or not early
            tick(2)
            arena.write(whole, value)
            are_in(1, 0, 1)
            assert arena.born_next() == [1, 0, 1]
            if value == 3:
                break
            for layer in (3, 4):
                tick(layer)
            are_in(1, 0, 1)
            for layer in (5, 6):
                tick(layer)
            are_in(1, 0, 0)
            tick(7)
            assert arena.born_next() == BORN_IN
            arena.discard(plan.blocks[2].offset, whole)  # z's pages were kept for its next life
            tick(0)
        if ends == "hand over":
            running.engine.hand_over()
            assert arena.born_next() == BORN_IN
    assert arena.born_next() == BORN_IN
    if ends == "restore":
        assert arena.tiers(whole) == [{0}] * 3
        assert bytes(arena.map[arena.first : arena.first + 3 * whole]) == bytes([3]) * 3 * whole
    arena.close()


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
    assert bool(counters.discarded_bytes) == (spare_bytes < MIB // 4)
    assert counters.kept_bytes > 0
    arena.close()


@pytest.mark.needs("two nodes")
def test_huge_pages_move_as_such() -> None:
    """Whole after each move, and every page accounted for."""
    profile = make_profile([param("a", 4 * MIB, [1, 2]), param("b", 6 * MIB, [5, 6])], 8)
    moves = [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)]
    plan = transient_plan(profile, [1, 1], moves, fast_bytes=6 * MIB)
    arena = Arena(plan, huge=[(0, plan.extent_bytes)])
    huge = huge_bytes(arena.base, plan.extent_bytes)
    assert huge == 10 * MIB
    with applied(plan, profile, node_machine(topology().slower[0]), strict=True, ranges=arena.ranges) as running:
        running.let_land()
        walk(running, 3)
        assert huge_bytes(arena.base, plan.extent_bytes) == huge
        run = running.engine.end_run()
    assert {OUTCOMES[outcome] for outcome in run.migrations["outcome"]} <= {"done", "late"}
    assert (run.migrations["moved_bytes"] == run.migrations["nbytes"]).all()
    assert run.counters.stayed == {}
    assert bytes(arena.map) == arena.expected
    arena.close()


# a moves beside b, which stays; x is demoted and dies there. Of 2 MiB each: a, a and b, b, x, x.
NEIGHBOURS = make_profile([param("a", 3 * MIB, [1, 2]), param("b", 3 * MIB, [5]), act("x", 4 * MIB, 2, 7, [6])], 8)
THEIR_MOVES = [(0, 0, 1, 3, 4), (2, 0, 1, 3, 4), (0, 1, 0, 7, 8)]


@pytest.mark.needs("two nodes", "root")
@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "everywhere"])
def test_a_block_takes_its_huge_pages_along_and_no_neighbours(chosen: bool) -> None:
    """`everywhere` is the control: a takes along what b has of the huge page that both share."""
    fast, slow = topology().fast, topology().slower[0]
    plan = transient_plan(NEIGHBOURS, [0, 0, 0], THEIR_MOVES, fast_bytes=16 * MIB)
    huge = huge_ranges([Placed(plan, 0)], 1 << 30) if chosen else [(0, plan.extent_bytes)]
    arena, witness = Arena(plan, huge=huge), MigrationWitness()
    a, b, x = ((block.offset, block.nbytes) for block in plan.blocks)
    born = slice(arena.first + x[0], arena.first + sum(x))
    huge_of = partial(_huge_bytes_of, arena.base)
    whole = (2 * MIB, 2 * MIB, 4 * MIB)
    assert (huge_of(a), huge_of(b), huge_of(x)) == (whole if chosen else (3 * MIB, 3 * MIB, 4 * MIB))
    arena.discard(*x)
    witness.start([(arena.base, plan.extent_bytes)])
    strayed = 0
    kept = {"discard": arena.discard, "ranges": arena.ranges, "strict": chosen}
    with applied(plan, NEIGHBOURS, node_machine(slow), **kept) as running:
        for layer in [*range(1, 8), 0] * 3:
            running.tick(layer)
            if layer == 2:
                arena.map[born] = arena.expected[born]
            running.let_land()
            alive = 2 <= layer < 7
            if layer == 3:
                assert numa.bytes_on(slow, arena.ranges(0)) == 3 * MIB
                assert numa.bytes_on(slow, arena.ranges(2)) == 4 * MIB
                strayed += numa.bytes_on(slow, arena.ranges(1))
            if chosen:
                assert (huge_of(a), huge_of(b), huge_of(x)) == (*whole[:2], 4 * MIB * alive)
                running.engine._block_mover.collect()
                held = running.engine._mover.held()
                assert numa.bytes_on(fast, [(arena.base, plan.extent_bytes)]) == held.fast_bytes
                assert numa.bytes_on(slow, [(arena.base, plan.extent_bytes)]) == held.bytes_in[1]
        run = running.engine.end_run()
    seen = witness.read()
    witness.stop()
    arena.close()
    assert bool(strayed) != chosen
    if chosen:
        moved_pages = int(run.migrations["moved_bytes"].sum()) // 4096
        assert seen.pages("syscall") == moved_pages == 3 * (2 * (3 * MIB) + 4 * MIB) // 4096
        sizes, counts = np.unique(seen.moves["n_pages"], return_counts=True)
        assert dict(zip(sizes.tolist(), counts.tolist(), strict=True)) == {1: 3 * 2 * 256, 512: 3 * (2 + 2)}
        low, high = arena.base + b[0], arena.base + sum(b)
        assert not ((seen.moves["address"] < high) & (seen.moves["address"] + seen.moves["n_pages"] * 4096 > low)).any()


def _huge_bytes_of(base: int, block: tuple[int, int]) -> int:
    return huge_bytes(base + block[0], block[1])


def huge_bytes(address: int, nbytes: int) -> int:
    """Bytes of a range that are mapped as huge pages: by the kernel's flags of each page frame. Needs root."""
    with open("/proc/self/pagemap", "rb") as pagemap, open("/proc/kpageflags", "rb") as flags:
        pagemap.seek(address // 4096 * 8)
        entries = np.frombuffer(pagemap.read(nbytes // 4096 * 8), np.uint64)
        frames = entries[entries >> np.uint64(63) == 1] & np.uint64((1 << 55) - 1)
        found = 0
        for frame in frames.tolist():
            flags.seek(frame * 8)
            found += int.from_bytes(flags.read(8), "little") >> _THP & 1
    return found * 4096


_THP = 22  # KPF_THP
