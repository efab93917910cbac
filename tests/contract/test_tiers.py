"""What every tier does, whatever it is made of. A new tier is a fixture here."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sentinel.core.machine import Machine
from sentinel.core.plan import USE_DTYPE
from sentinel.migration.mover import Copied, Moved, NativeMover, Outcome
from sentinel.system import numa
from sentinel.system.topology import topology
from sentinel.tiers import KINDS, EmulatedTier, HeldBlock, Tier, open_tiers
from sentinel.tiers.tier import BACKEND, FAST, Job
from tests.builders import GB, MIB, make_machine, make_profile, param, persistent_plan
from tests.processes import until
from tests.unit.engine_builders import applied

pytestmark = pytest.mark.needs("native")

CAPACITY = 4 * MIB


class Memory:
    """Pages of this process with known bytes."""

    def __init__(self, nbytes: int) -> None:
        self.map = mmap.mmap(-1, nbytes)
        self.map[:] = bytes(i % 251 for i in range(4096)) * (nbytes // 4096)
        self.expected = bytes(self.map)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._anchor)
        self.nbytes = nbytes

    def close(self) -> None:
        self._anchor = None
        self.map.close()


class Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("nbytes", ctypes.c_uint64))


MOVE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Span), ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)


class Backend(ctypes.Structure):
    """sn_backend of kernel_profiler/include/sentinel.h."""

    _fields_ = (("move", MOVE), ("context", ctypes.c_void_p))


class ShelvedTier(Tier):
    """Not memory: what is here is in a file, and its pages are gone. What a device would be, in few lines."""

    def __init__(self, machine: Machine, index: int, bytes_per_s: int = 0) -> None:
        super().__init__(machine, index, bytes_per_s)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- close() does it
        self._backend = Backend(MOVE(self._move), None)
        self.written_bytes = self.error = 0

    def delay_ns(self, uses: np.ndarray) -> np.ndarray:
        return np.zeros(len(uses), np.int64)

    def job(self, block: HeldBlock, source: int, target: int) -> Job:
        backend = ctypes.addressof(self._backend)
        return Job(source, target, block.nbytes, block.held, kind=BACKEND, spans=block.ranges(), backend=backend)

    def _move(self, _: None, spans: ctypes.Array[Span], count: int, source: int, target: int) -> int:
        if self.error:
            return self.error
        for span in spans[:count]:
            pages = (ctypes.c_char * span.nbytes).from_address(span.address)
            if target:  # the file is as sparse as addresses are
                os.pwrite(self._file.fileno(), pages, span.address % (1 << 40))
                ctypes.memset(pages, 0, span.nbytes)
                self.written_bytes += span.nbytes
            else:
                pages.raw = os.pread(self._file.fileno(), span.nbytes, span.address % (1 << 40))
        return 0

    def close(self) -> None:
        self._file.close()


@dataclass
class Case:
    """A tier, its mover and a block of two pieces that begins in fast memory."""

    tier: Tier
    mover: NativeMover
    memory: Memory

    def block(self, fast_bytes: int | None = None) -> HeldBlock:
        half, address = self.memory.nbytes // 2, self.memory.address
        pieces = [(address, half), (address + half, half)]
        held = self.memory.nbytes if fast_bytes is None else fast_bytes
        return HeldBlock(self.memory.nbytes, (held, self.memory.nbytes - held), lambda: pieces)

    def admit(self, block: HeldBlock) -> int:
        return self.mover.submit(self.tier.job(block, 0, 1))

    def recall(self, block: HeldBlock, after: int = 0) -> int:
        return self.mover.submit(self.tier.job(block, 1, 0)._replace(after=after))

    def ended(self, job: int) -> Moved:
        assert self.mover.wait(job)
        (moved,) = self.mover.results()
        assert moved.job == job
        return moved


def _emulated() -> Machine:
    machine = make_machine(CAPACITY, promote=GB, demote=GB, slow_bytes=64 * MIB)
    return replace(machine, tiers=(machine.tiers[0], replace(machine.tiers[1], kind="emulated")))


def _node(slow: int) -> Machine:
    machine = _emulated()
    fast = replace(machine.tiers[0], kind="node", node=topology().fast)
    return replace(machine, tiers=(fast, replace(machine.tiers[1], kind="node", node=slow)))


def _shelved() -> Machine:
    machine = make_machine(CAPACITY, promote=GB, demote=GB, slow_bytes=64 * MIB, addressable=False)
    return replace(machine, tiers=(machine.tiers[0], replace(machine.tiers[1], kind="file")))


# On a host with one node, a node tier on that node: all is there already, the rest of the contract holds.
MACHINES = {
    "emulated": _emulated,
    "same node": lambda: _node(topology().fast),
    "slower node": lambda: _node(topology().slower[0]),
    "no memory": _shelved,
}
_TWO = pytest.mark.needs("two nodes")


@pytest.fixture(params=["emulated", "same node", pytest.param("slower node", marks=_TWO), "no memory"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setitem(KINDS, "file", ShelvedTier)
    machine = MACHINES[request.param]()
    mover = NativeMover(CAPACITY)
    tier = open_tiers(machine)[1]
    assert tier is not None
    memory = Memory(2 * MIB)
    yield Case(tier, mover, memory)
    if isinstance(tier, ShelvedTier):
        tier.close()
    mover.close()
    memory.close()


def test_a_tier_says_what_it_is(case: Case) -> None:
    assert case.tier.spec.name == "slow"
    assert case.tier.spec.capacity_bytes == 64 * MIB


def test_what_is_admitted_leaves_fast_memory_and_takes_room_here(case: Case) -> None:
    assert case.mover.reserve(2 * MIB)
    moved = case.ended(case.admit(case.block()))
    assert moved.outcome in (Outcome.DONE, Outcome.ALREADY)
    assert (moved.held[FAST], moved.errno) == (0, 0)
    assert case.mover.held().fast_bytes == 0
    assert case.mover.held().bytes_in[1] == 2 * MIB


def test_what_is_recalled_is_back_with_every_byte(case: Case) -> None:
    assert case.mover.reserve(2 * MIB)
    case.ended(case.admit(case.block()))
    moved = case.ended(case.recall(case.block(0)))
    assert moved.outcome in (Outcome.DONE, Outcome.ALREADY)
    assert moved.held[FAST] == case.mover.held().fast_bytes == 2 * MIB
    assert case.mover.held().bytes_in[1] == 0
    assert bytes(case.memory.map) == case.memory.expected


def test_what_an_emulated_tier_moves_is_copied_both_ways(case: Case) -> None:
    if not isinstance(case.tier, EmulatedTier):
        assert case.mover.copied() == Copied(0, 0, 0, 0, 0)
        return
    assert case.mover.reserve(2 * MIB)
    case.ended(case.admit(case.block()))
    there = case.mover.copied()
    assert (there.copied_bytes, there.absent_bytes, there.refused_bytes) == (2 * MIB, 0, 0)
    assert there.cpu_ns > 0
    case.ended(case.recall(case.block(0)))
    assert case.mover.copied().copied_bytes == 4 * MIB
    case.ended(case.recall(case.block()))  # it is there already
    assert case.mover.copied().copied_bytes == 4 * MIB
    assert bytes(case.memory.map) == case.memory.expected


def test_bytes_stay_right_wherever_they_are(case: Case) -> None:
    assert case.mover.reserve(2 * MIB)
    case.ended(case.admit(case.block()))
    if not case.tier.used_in_place:
        assert not any(bytes(case.memory.map))
        return
    assert bytes(case.memory.map) == case.memory.expected
    case.memory.map[:4096] = b"\x05" * 4096
    case.ended(case.recall(case.block(0)))
    assert bytes(case.memory.map[:8192]) == b"\x05" * 4096 + case.memory.expected[4096:8192]


def test_a_recall_waits_for_room_that_is_not_there(case: Case) -> None:
    assert case.mover.reserve(3 * MIB)
    case.mover.hold(1, 2 * MIB)
    job = case.recall(case.block(0))
    assert not case.mover.wait(job)
    assert case.mover.held().starved
    case.mover.release(3 * MIB)
    assert case.ended(job).held[FAST] == 2 * MIB
    assert case.mover.held().most_fast_bytes <= CAPACITY


def test_transfers_go_one_after_the_other_where_asked(case: Case) -> None:
    assert case.mover.reserve(2 * MIB)
    down = case.admit(case.block())
    until(lambda: case.mover.held().in_flight_bytes or case.mover.ended())
    up = case.recall(case.block(0), down)
    assert case.mover.wait(up)
    first, second = case.mover.results()
    assert (first.job, second.job) == (down, up)
    assert second.start_ns >= first.stop_ns
    assert second.held[FAST] == case.mover.held().fast_bytes == 2 * MIB


def test_delays_are_whole_and_never_negative(case: Case) -> None:
    uses = np.zeros(3, USE_DTYPE)
    uses["read_bytes"], uses["written_bytes"] = [0, 10**6, 0], [0, 0, 10**6]
    delays = case.tier.delay_ns(uses)
    assert delays.dtype == np.int64
    assert delays.shape == (3,)
    if case.tier.spec.kind == "emulated":  # 10 GB/s instead of 100
        assert delays.tolist() == [0, 90_000, 90_000]
    else:
        assert delays.tolist() == [0, 0, 0]


def test_what_is_not_memory_is_carried_out_by_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tensors take turns in fast memory; each is there, with every byte, in the layers that use it."""
    opened: list[ShelvedTier] = []

    class Seen(ShelvedTier):
        def __init__(self, machine: Machine, index: int, bytes_per_s: int = 0) -> None:
            super().__init__(machine, index, bytes_per_s)
            opened.append(self)

    monkeypatch.setitem(KINDS, "file", Seen)
    profile = make_profile([param("a", MIB, [1, 2]), param("b", MIB, [5, 6])], 8)
    moves = [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)]
    plan = persistent_plan(profile, [1, 1], moves, fast_bytes=MIB)
    machine = _shelved()
    machine = replace(machine, tiers=(replace(machine.tiers[0], kind="node", node=0), machine.tiers[1]))
    memories = [Memory(MIB), Memory(MIB)]
    ranges = [[(memory.address, memory.nbytes)] for memory in memories]
    with applied(plan, profile, machine, strict=True, ranges=lambda block: ranges[block]) as running:
        for _ in range(3):
            for layer in (1, 2, 3, 4, 5, 6, 7, 0):
                running.tick(layer)
                for memory, layers in zip(memories, ((1, 2), (5, 6)), strict=True):
                    if layer in layers:
                        assert bytes(memory.map) == memory.expected
                    used = b"" if layer not in layers else bytes([layer]) * 4096
                    memory.map[: len(used)] = used
                    memory.expected = used + memory.expected[len(used) :]
        run = running.engine.end_run()
    (tier,) = opened
    tier.close()
    assert tier.written_bytes >= 6 * MIB
    assert not run.emulated
    assert set(run.migrations["errno"].tolist()) == {0}
    for memory in memories:  # all came home
        assert bytes(memory.map) == memory.expected
        memory.close()


def test_what_a_backend_refuses_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "file", ShelvedTier)
    mover, memory = NativeMover(CAPACITY), Memory(2 * MIB)
    tier = open_tiers(_shelved())[1]
    assert isinstance(tier, ShelvedTier)
    case = Case(tier, mover, memory)
    assert mover.reserve(2 * MIB)
    tier.error = errno.ENOSPC
    moved = case.ended(case.admit(case.block()))
    assert (moved.outcome, moved.errno, moved.held[FAST]) == (Outcome.FAILED, errno.ENOSPC, 2 * MIB)
    assert bytes(memory.map) == memory.expected
    assert mover.errors() == {"ENOSPC": 1}
    mover.close()
    tier.close()
    memory.close()


@pytest.mark.needs("two nodes")
def test_pages_are_on_the_node_that_the_tier_stands_for() -> None:
    machine = _node(topology().slower[0])
    fast, slow = machine.fast.node, machine.tiers[1].node
    assert fast is not None
    assert slow is not None
    mover, memory = NativeMover(CAPACITY), Memory(2 * MIB)
    tier = open_tiers(machine)[1]
    assert tier is not None
    case = Case(tier, mover, memory)
    assert mover.reserve(2 * MIB)
    pages = [(memory.address, memory.nbytes)]
    for turn in range(3):
        moved = case.ended(case.admit(case.block()))
        assert numa.bytes_on(slow, pages) == moved.moved_bytes == 2 * MIB, turn
        moved = case.ended(case.recall(case.block(0)))
        assert numa.bytes_on(fast, pages) == moved.moved_bytes == 2 * MIB, turn
    assert bytes(memory.map) == memory.expected
    mover.close()
    memory.close()
