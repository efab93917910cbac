"""The window bound: no execution of a step is faster, looked for among all of them where they are few."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.disk_rates import DiskRates
from sentinel.core.granule_contents import NEVER, granule_contents
from sentinel.core.granule_uses import BORN, DIED, READS, WRITES, GranuleUses
from sentinel.core.units import HUGE_PAGE_BYTES
from sentinel.planner.window_bound import window_bound
from tests.read_ahead import granule_uses, read_ahead_step

KINDS = (READS, READS | WRITES, WRITES, BORN | WRITES, READS | DIED, BORN | WRITES | DIED, BORN | READS, DIED)


def rates(read_ns: float, write_ns: float) -> DiskRates:
    return DiskRates(HUGE_PAGE_BYTES * 1e9 / read_ns, HUGE_PAGE_BYTES * 1e9 / write_ns)


def steps(most_operators: int, most_granules: int) -> st.SearchStrategy[GranuleUses]:
    uses = st.dictionaries(st.integers(0, most_granules - 1), st.sampled_from(KINDS), max_size=2)
    operators = st.lists(st.tuples(st.integers(0, 3), uses), min_size=1, max_size=most_operators)
    return operators.map(lambda rows: granule_uses([time for time, _ in rows], [named for _, named in rows]))


# ---- all executions ---------------------------------------------------------------------------------------

AWAY, CLEAN, CHANGED, DEAD = range(4)
"""Of a granule: in the file, in a frame and in the file, in a frame only, nowhere and of no use."""

State = tuple[int, int, tuple[int, ...], tuple[int, int, int]]
"""The operator, the time that it still takes (-1: it has not begun), the granules, and what the disk does: -1 nothing,
else 0 to read or 1 to write, of which granule, for how long still."""

IDLE = (-1, -1, 0)


class Machine:
    """Executes a step in units of time, in any way that there is."""

    def __init__(self, uses: GranuleUses, frames: int, read: int, write: int) -> None:
        told = granule_contents(uses)
        self.frames, self.transfer = frames, (read, write)
        self.computes = uses.compute_ns.tolist()
        self.accesses: list[dict[int, tuple[bool, bool, bool]]] = [{} for _ in self.computes]
        self.granules = int(uses.granule.max(initial=0)) + 1
        for row in zip(told.operator, told.granule, told.needs, told.writes, told.next_needs, strict=True):
            operator, granule, *flags = map(int, row)
            self.accesses[operator][granule] = (bool(flags[0]), bool(flags[1]), bool(flags[2]))
        self.alive_at_begin = self._alive_at_begin()

    def _alive_at_begin(self) -> set[int]:
        """Granules whose first access needs what they hold."""
        firsts: dict[int, bool] = {}
        for mine in self.accesses:
            for granule, (needs, _, _) in mine.items():
                firsts.setdefault(granule, needs)
        return {granule for granule, needs in firsts.items() if needs}

    def begins(self) -> Iterator[State]:
        def states(granule: int) -> tuple[int, ...]:
            return (AWAY, CLEAN, CHANGED) if granule in self.alive_at_begin else (DEAD,)

        def grow(found: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(found) == self.granules:
                yield found
                return
            for state in states(len(found)):
                yield from grow((*found, state))

        for held in grow(()):
            if sum(each in (CLEAN, CHANGED) for each in held) <= self.frames:
                yield (0, -1, held, IDLE)

    def next_states(self, state: State) -> Iterator[tuple[int, State]]:
        """What may come next, and after how much time."""
        operator, left, held, disk = state
        running = self.accesses[operator] if left >= 0 else {}
        in_frames = sum(each in (CLEAN, CHANGED) for each in held) + (disk[0] == 0)
        for granule, each in enumerate(held):
            if each == CLEAN and granule not in running and disk[1] != granule:
                yield 0, (operator, left, _with(held, granule, AWAY), disk)
            if disk == IDLE and each == AWAY and in_frames < self.frames:
                yield 0, (operator, left, held, (0, granule, self.transfer[0]))
            if disk == IDLE and each == CHANGED and not running.get(granule, (0, False, 0))[1]:
                yield 0, (operator, left, held, (1, granule, self.transfer[1]))
        if left < 0:
            yield from self._begun(state, in_frames)
        if left == 0:
            yield 0, (operator + 1, -1, self._after(held, operator), disk)
        elif left > 0 or disk != IDLE:
            yield 1, (operator, max(left - 1, -1), *self._later(held, disk))

    def _begun(self, state: State, in_frames: int) -> Iterator[tuple[int, State]]:
        operator, _, held, disk = state
        mine = self.accesses[operator]
        new = [granule for granule, (needs, _, _) in mine.items() if held[granule] in (AWAY, DEAD) and not needs]
        ready = all(held[granule] in (CLEAN, CHANGED) for granule, (needs, _, _) in mine.items() if needs)
        writing = disk[0] == 1 and mine.get(disk[1], (0, False, 0))[1]
        if ready and not writing and in_frames + len(new) <= self.frames and disk[1] not in new:
            for granule in new:
                held = _with(held, granule, CHANGED)
            yield 0, (operator, self.computes[operator], held, disk)

    def _after(self, held: tuple[int, ...], operator: int) -> tuple[int, ...]:
        for granule, (_, writes, needed) in self.accesses[operator].items():
            if not needed:
                held = _with(held, granule, DEAD)
            elif writes:
                held = _with(held, granule, CHANGED)
        return held

    def _later(self, held: tuple[int, ...], disk: tuple[int, int, int]) -> tuple[tuple[int, ...], tuple[int, int, int]]:
        if disk == IDLE:
            return held, disk
        kind, granule, left = disk
        if left > 1:
            return held, (kind, granule, left - 1)
        return (held if held[granule] == DEAD else _with(held, granule, CLEAN)), IDLE

    def least_step(self) -> int | None:
        """The least time after which a step has come back to where it began, with the disk idle there."""
        found = [time for time in map(self._least_from, self.begins()) if time is not None]
        return min(found, default=None)

    def _least_from(self, begin: State) -> int | None:
        end = (len(self.computes), -1, begin[2], IDLE)
        best, open_ = {begin: 0}, [(0, begin)]
        while open_:
            time, state = heapq.heappop(open_)
            if state == end:
                return time
            if best[state] < time:
                continue
            following = self._at_end(state) if state[0] == len(self.computes) else self.next_states(state)
            for more, after in following:
                if time + more < best.get(after, 1 << 60):
                    best[after] = time + more
                    heapq.heappush(open_, (time + more, after))
        return None

    def _at_end(self, state: State) -> Iterator[tuple[int, State]]:
        """The step is over: what is clean may be dropped, and what the disk does comes to its end."""
        operator, left, held, disk = state
        for granule, each in enumerate(held):
            if each == CLEAN and disk[1] != granule:
                yield 0, (operator, left, _with(held, granule, AWAY), disk)
            if disk == IDLE and each == CHANGED:
                yield 0, (operator, left, held, (1, granule, self.transfer[1]))
            if disk == IDLE and each == AWAY and sum(e in (CLEAN, CHANGED) for e in held) < self.frames:
                yield 0, (operator, left, held, (0, granule, self.transfer[0]))
        if disk != IDLE:
            yield 1, (operator, left, *self._later(held, disk))


def _with(held: tuple[int, ...], granule: int, state: int) -> tuple[int, ...]:
    return (*held[:granule], state, *held[granule + 1 :])


@settings(max_examples=30, deadline=None)
@given(steps(3, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_no_execution_is_faster(uses: GranuleUses, frames: int, read: int, write: int) -> None:
    least = Machine(uses, frames, read, write).least_step()
    if least is not None:  # else an operator does not fit
        assert window_bound(uses, frames, rates(read, write)).step_ns <= least


def test_it_is_the_least_step_where_all_is_needed_anew() -> None:
    """Three granules are changed in turn, and one frame holds one: each is read and written once a step."""
    uses = granule_uses([1, 1, 1], [{0: READS | WRITES}, {1: READS | WRITES}, {2: READS | WRITES}])
    machine = Machine(uses, 1, 2, 1)
    found = window_bound(uses, 1, rates(2, 1))
    assert machine.least_step() == 12  # it waits for all transfers, which one frame leaves no room to hide
    assert (found.step_ns, found.compute_ns) == (9, 3)  # as if operators overlapped with them
    assert (found.read_bytes, found.written_bytes) == (3 * HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES)
    assert window_bound(uses, 3, rates(2, 1)).step_ns == 3


# ---- larger ones ------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(steps(24, 8), st.integers(2, 6), st.integers(1, 9), st.integers(1, 9))
def test_reading_ahead_is_no_faster(uses: GranuleUses, frames: int, read: int, write: int) -> None:
    disk = rates(read, write)
    least, done = window_bound(uses, frames, disk), read_ahead_step(uses, frames, disk)
    assert uses.compute_ns.sum() <= least.step_ns <= done.step_ns
    assert least.read_bytes <= done.read_bytes
    assert done.waited_ns == done.step_ns - uses.compute_ns.sum()


@settings(max_examples=100, deadline=None)
@given(steps(12, 6))
def test_contents_are_those_of_a_step_after_the_other(uses: GranuleUses) -> None:
    """Against a walk over six steps, seen in the third one."""
    told = granule_contents(uses)
    n = uses.operators
    walked: dict[int, list[tuple[int, int]]] = {}
    for step in range(6):
        for operator, granule, kind in zip(uses.operator, uses.granule, uses.kind, strict=True):
            walked.setdefault(int(granule), []).append((int(operator) + step * n, int(kind)))

    @cache
    def accesses(granule: int) -> list[tuple[int, bool, bool]]:
        found, dead = [], False
        for operator, kind in walked[granule]:
            dead = dead or bool(kind & BORN)
            if kind & (READS | WRITES):
                found.append((operator, bool(kind & READS) and not dead, bool(kind & WRITES)))
                dead = False
            dead = dead or bool(kind & DIED)
        return found

    rows = zip(
        told.operator,
        told.granule,
        told.needs,
        told.writes,
        told.previous,
        told.next,
        told.until,
        told.written,
        strict=True,
    )
    for operator, granule, needs, writes, previous, following, until, written in rows:
        mine = accesses(int(granule))
        at = next(i for i, (when, *_) in enumerate(mine) if when == operator + 2 * n)
        assert mine[at] == (operator + 2 * n, needs, writes)
        assert (mine[at - 1][0], mine[at + 1][0]) == (previous + 2 * n, following + 2 * n)
        if writes:
            last = operator + 2 * n
            for when, wanted, changed in mine[at + 1 :]:
                if wanted:
                    last = when
                if changed or not wanted:
                    break
            assert last == until + 2 * n
        source = NEVER
        for when, wanted, changed in reversed(mine[:at] if needs else []):
            if changed or not wanted:
                source = when - 2 * n if changed else NEVER
                break
        assert source == written
    assert len(told.operator) == np.count_nonzero(uses.kind & (READS | WRITES))


def test_windows_cut_at_few_operators_only_bound_from_below() -> None:
    """1,000 operators, of which 256 begin windows: less is read than by reading ahead, and not by much."""
    granules = 50
    rows = [{i % granules: READS | WRITES} for i in range(1000)]
    uses, disk = granule_uses([1] * 1000, rows), rates(3, 2)
    least, done = window_bound(uses, 30, disk), read_ahead_step(uses, 30, disk)
    assert least.step_ns <= done.step_ns
    assert 0.95 * done.read_bytes <= least.read_bytes <= done.read_bytes
    assert least.step_ns >= 5 * 0.95 * done.read_bytes // HUGE_PAGE_BYTES  # each is written, too


def test_a_hundred_thousand_operators_are_no_trouble() -> None:
    """20,000 granules forward and backward, each with 5 others; only that it ends, and is not vacuous."""
    numbers = np.random.default_rng(3)
    forward = np.arange(50_000) * 20_000 // 50_000
    first = np.concatenate([forward, forward[::-1]])
    granule = (first[:, None] + numbers.integers(1, 4000, (100_000, 1)) * np.arange(6)) % 20_000
    kept = np.sort(granule, 1)
    unique = np.diff(kept, axis=1, prepend=-1) > 0
    uses = GranuleUses(
        np.full(100_000, 10_000, np.int64),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(unique.sum(1))]),
        kept[unique].astype(np.int32),
        np.full(int(unique.sum()), READS | WRITES, np.uint8),
    )
    found = window_bound(uses, 10_000, rates(1_000_000, 1_000_000))
    assert found.step_ns > 10 * found.compute_ns
    assert found.read_bytes >= 10_000 * HUGE_PAGE_BYTES


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": np.array([READS], np.uint8)}, "granule: 2 of them, 1 kinds"),
        ({"first_use": np.array([0, 1], np.int64)}, "first_use: 2 for 2 operators"),
        ({"first_use": np.array([0, 2, 1], np.int64)}, "first_use: an operator ends before it begins"),
        ({"first_use": np.array([0, 1, 1], np.int64)}, "first_use: ends at another number than the 2 uses"),
        ({"compute_ns": np.array([0, -1], np.int64)}, "compute_ns: a time below 0"),
        ({"granule": np.array([0, -1], np.int32)}, "granule: a number below 0"),
        ({"granule": np.array([0, 1], np.int64)}, "granule: expected a row of int32"),
        ({"kind": np.array([READS, 16], np.uint8)}, "kind: one that is unknown"),
        ({"kind": np.array([READS, 0], np.uint8)}, "kind: one that is unknown"),
        (
            {"first_use": np.array([0, 2, 2], np.int64), "granule": np.array([1, 1], np.int32)},
            "granule: one stands twice in one operator",
        ),
    ],
)
def test_uses_that_do_not_fit_are_refused(change: dict[str, np.ndarray], what: str) -> None:
    rows = {
        "compute_ns": np.array([1, 2], np.int64),
        "first_use": np.array([0, 1, 2], np.int64),
        "granule": np.array([0, 1], np.int32),
        "kind": np.array([READS, WRITES], np.uint8),
    }
    assert GranuleUses(**rows).operator.tolist() == [0, 1]
    with pytest.raises(ValueError, match=what):
        GranuleUses(**{**rows, **change})


def test_rates_and_frames_that_mean_nothing_are_refused() -> None:
    uses = granule_uses([1], [{0: READS, 1: READS}])
    with pytest.raises(ValueError, match="expected above 0"):
        DiskRates(0, 1)
    with pytest.raises(ValueError, match="at least 1"):
        window_bound(uses, 0, rates(1, 1))
    with pytest.raises(ValueError, match="needs 2 granules at once"):
        read_ahead_step(uses, 1, rates(1, 1))
