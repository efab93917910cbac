"""Laws of executions whose memory is frames and a file: whatever a step does, and whatever comes in between,

- freshness: no operator finds other bytes than were written last;
- a hard budget: tensors never take more memory than there are frames, by the kernel's own account.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentinel.core.units import PAGE_BYTES
from sentinel.system import native
from sentinel.system.disks import disk_of
from sentinel.system.limits import LimitedGroup
from sentinel.tiers.file_tier import FileTier, FramedTensors
from sentinel.tiers.frames import FRAME_BYTES, Frames, State
from sentinel.tiers.pool_cap import PoolCap, pool_now

pytestmark = pytest.mark.needs("native")

MIB = 1 << 20
MOST_FRAMES, LEAST_FRAMES, GRANULES = 6, 4, 48  # a tensor fits in as few, wherever it begins
LASTING = 4
"""Of the tensors that operators name, the first ones live from step to step, the others from their first use in a step
to their last one."""
SIZES = (MIB, 3 * MIB // 2, 2 * MIB, 3 * MIB, 9 * MIB // 2, 1 * MIB, 5 * MIB // 2, 4 * MIB)
READS, WRITES, ZEROES = range(3)  # SN_READS, SN_WRITES, SN_ZEROES
RESIDENT = (State.DIRTY, State.CLEAN, State.UNSAVED)
LIMIT_BYTES = 1000 * MIB
FAULT_BYTES = 16 * PAGE_BYTES  # that the kernel may map where one page is touched

Operator = dict[int, int]
"""Tensor -> how it is used."""


@dataclass(frozen=True)
class Event:
    """Before operator `at` of step `step`: a store or a load that nobody announced, in page `amount` of a tensor; a
    fork; or a limit that leaves `amount` frames."""

    step: int
    at: int
    kind: str
    tensor: int
    amount: int


class _Operand(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("writes", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    )


class Tensor:
    """Memory of the library's, and what it should hold."""

    def __init__(self, nbytes: int, value: int) -> None:
        self.address = native.library().sn_allocate(nbytes)
        self.held = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))
        self.expected = np.full(nbytes, value, np.uint8)
        self.held[:] = value

    def granules(self, base: int) -> range:
        first = (self.address - base) // FRAME_BYTES
        return range(first, (self.address + len(self.held) - 1 - base) // FRAME_BYTES + 1)

    def fill(self, value: int) -> None:
        self.held[:] = value
        self.expected[:] = value

    def is_fresh(self) -> bool:
        return np.array_equal(self.held, self.expected)

    def page(self, number: int) -> slice:
        at = number * PAGE_BYTES % len(self.held)
        return slice(at, at + PAGE_BYTES)


class Job:
    """Runs operators, and looks at the laws as it goes."""

    def __init__(self, disk: Path, folder: Path) -> None:
        gc.collect()  # of a session before
        made = Frames(disk, frames=MOST_FRAMES, granules=GRANULES, regions=GRANULES)
        self.frames = ctypes.c_void_p(made._handle.value)
        self.framed = FramedTensors(made, FileTier.least_bytes)
        self.tensors: dict[int, Tensor] = {}
        self.value, self.touched = 0, 0
        self.limit, self.used, self.stat = (folder / name for name in ("limit", "used", "stat"))
        self.limit.write_text(f"{LIMIT_BYTES}\n")
        self.stat.write_text("idle 0\nbusy 0\n")
        group = LimitedGroup(0, LIMIT_BYTES, self.limit, self.used, self.stat, "idle", "busy")
        self.leave_room(MOST_FRAMES)
        least, most = LEAST_FRAMES * FRAME_BYTES, MOST_FRAMES * FRAME_BYTES
        PoolCap(LIMIT_BYTES, 0, 0, most, least, most, (group,), 1).follow()
        (self.pool,) = [int(name) for name in os.listdir("/proc/self/fd") if _is_pool(name)]

    def leave_room(self, frames: int) -> None:
        """The cgroup holds as much as leaves room for so many."""
        self.used.write_text(f"{LIMIT_BYTES - (frames - pool_now().frames) * FRAME_BYTES}\n")

    def born(self, name: int) -> Tensor:
        self.tensors[name] = Tensor(SIZES[name], self.next_value())
        return self.tensors[name]

    def died(self, name: int) -> None:
        native.library().sn_free(self.tensors.pop(name).address)

    def next_value(self) -> int:
        self.value = self.value % 255 + 1
        return self.value

    def run(self, operator: Operator) -> None:
        named = [(self.tensors.get(name) or self.born(name), kind) for name, kind in operator.items()]
        framed = [(each, kind) for each, kind in named if self.framed.contains(each.address)]
        found = self.bring_in(framed)
        if found != 1:
            self.check_resident(framed)
        self.check_budget()
        for tensor, kind in named:
            assert kind == ZEROES or tensor.is_fresh()
        for tensor, kind in named:
            if kind != READS:
                tensor.fill(0 if kind == ZEROES else self.next_value())
        for end, told in (("sn_framed_done", 1), ("sn_framed_ran", 2)):
            if found == told:
                native.function(end, None)()

    def bring_in(self, framed: list[tuple[Tensor, int]]) -> int:
        rows = [_Operand(each.address, len(each.held), kind, 0) for each, kind in framed]
        need = native.function("sn_framed_need", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p)
        return int(need((_Operand * len(rows))(*rows), len(rows), b"aten::test"))

    def check_resident(self, framed: list[tuple[Tensor, int]]) -> None:
        states = (ctypes.c_uint8 * GRANULES)()
        tell = native.function(
            "sn_frames_states", ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint32] * 2, ctypes.c_void_p
        )
        native.check("sn_frames_states", tell(self.frames, 0, GRANULES, states))
        for tensor, kind in framed:
            for granule in tensor.granules(self.framed.facts.base):
                assert states[granule] in ((State.DIRTY,) if kind != READS else RESIDENT)

    def check_budget(self) -> None:
        frames, told = pool_now().frames, self.framed.counters().frames
        assert (
            told.free_frames + sum(told.in_state[state] for state in (*RESIDENT, State.LEAVING, State.ARRIVING))
            == frames
        )
        assert os.fstat(self.pool).st_blocks * 512 <= frames * FRAME_BYTES

    def check_budget_by_the_kernel(self) -> None:
        beside = FRAME_BYTES + self.touched * FAULT_BYTES  # what stores have made, and what the kernel has read
        assert self.framed.resident_bytes()[0] <= pool_now().frames * FRAME_BYTES + beside

    def meet(self, event: Event) -> None:
        tensor = self.tensors.get(event.tensor)
        if event.kind == "limit":
            self.leave_room(event.amount)
            for _ in range(10):  # more frames come only then
                native.function("sn_framed_look", None)()
                self.bring_in([])
                self.leave_room(event.amount)
            assert pool_now().frames == event.amount
        elif event.kind == "fork":
            assert self.child_is_fresh()
        elif tensor is not None:
            self.touched += 1
            page = tensor.page(event.amount)
            assert np.array_equal(tensor.held[page], tensor.expected[page])
            if event.kind == "store":
                value = self.next_value()
                tensor.held[page.start] = tensor.expected[page.start] = value

    def child_is_fresh(self) -> bool:
        """Whether a forked child finds a few pages of each tensor as they are."""
        pages = [(each, each.page(number)) for each in self.tensors.values() for number in (0, 300, 767)]
        self.touched += len(pages)
        if (pid := os.fork()) == 0:
            code = 1
            signal.alarm(120)  # a deadlock ends by this signal
            try:
                code = int(not all(np.array_equal(each.held[page], each.expected[page]) for each, page in pages))
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1] == 0

    def end(self) -> None:
        self.framed.step()  # what the kernel has read for operators that do not fit leaves
        for name in list(self.tensors):
            self.run({name: READS})
            self.check_budget_by_the_kernel()
            self.died(name)
        assert not self.framed.end()

    def close(self) -> None:
        """As well as it can be, where a law was broken."""
        for name in list(self.tensors):
            self.died(name)
        self.framed.end()


def _is_pool(name: str) -> bool:
    try:
        return "memfd:sentinel-frames" in os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return False  # that of the listing


def execute(job: Job, step: list[Operator], events: list[Event], steps: int) -> None:
    last = {name: at for at, operator in enumerate(step) for name in operator}
    for number in range(steps):
        job.framed.step()
        for at, operator in enumerate(step):
            for event in events:
                if (event.step, event.at) == (number, at):
                    job.meet(event)
            job.run(operator)
            for name in operator:
                if name >= LASTING and last[name] == at:
                    job.died(name)
    job.end()


operators = st.dictionaries(
    st.integers(0, len(SIZES) - 1), st.sampled_from((READS, READS, WRITES, WRITES, ZEROES)), min_size=1, max_size=3
)
kinds = st.sampled_from(("store", "load", "limit", "fork"))


@st.composite
def executions(draw: st.DrawFn) -> tuple[list[Operator], list[Event], int]:
    """The operators of a step, what comes in between, and how many steps: from the fourth on, what is recorded is read
    ahead of."""
    step, steps = draw(st.lists(operators, min_size=3, max_size=8)), draw(st.integers(1, 6))
    events = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(kinds)
        amount = draw(st.integers(LEAST_FRAMES, MOST_FRAMES) if kind == "limit" else st.integers(0, 2000))
        at, tensor = draw(st.integers(0, len(step) - 1)), draw(st.integers(0, len(SIZES) - 1))
        events.append(Event(draw(st.integers(0, steps - 1)), at, kind, tensor, amount))
    return step, events, steps


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    place = Path(tempfile.gettempdir())
    place = place if not disk_of(place).in_memory else Path(__file__).parent
    if disk_of(place).in_memory:
        pytest.skip("needs a disk: a checkout or TMPDIR that is not in memory")
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)
        assert not os.listdir(made)


def check(disk: Path, folder: Path, execution: Any) -> None:
    job = Job(disk, folder)
    try:
        execute(job, *execution)
    finally:
        job.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@settings(max_examples=12)
@given(execution=executions())
@example(
    execution=([{0: READS, 1: READS, 3: READS}, {0: READS, 4: READS, 5: READS}, {0: READS, 1: READS, 2: READS}], [], 2)
)
@example(
    execution=(
        [{3: READS}, {0: WRITES, 1: WRITES, 2: WRITES}, {4: WRITES, 7: WRITES}],
        [Event(1, 0, "store", 3, page) for page in (5, 300, 600)],
        3,
    )
)
def test_operators_find_what_was_written_last_within_their_frames(disk: Path, folder: Path, execution: Any) -> None:
    check(disk, folder, execution)


@pytest.mark.long
@settings(max_examples=300)
@given(execution=executions())
def test_many_executions_keep_the_laws(disk: Path, folder: Path, execution: Any) -> None:
    check(disk, folder, execution)
