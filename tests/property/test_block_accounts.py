"""Whatever is born, dies and moves, and in whatever order: each tier's account is the sum of what its blocks hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.migration.birth_nodes import BirthNodes
from sentinel.migration.block_mover import BlockMover
from sentinel.migration.block_table import BlockTable
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Move
from sentinel.migration.mover import NativeMover
from sentinel.migration.moves import Moves
from sentinel.migration.outcomes import Outcomes
from sentinel.migration.page_audit import PageAudit
from sentinel.migration.residents import Residents
from sentinel.migration.run_recorder import RunRecorder
from sentinel.migration.transients import Transients
from sentinel.tiers import open_tiers
from sentinel.tiers.tier import FAST
from tests.builders import MIB, act, make_profile, param
from tests.three_tiers import three_tiers
from tests.unit.engine_builders import INSTANT, transient_plan

pytestmark = pytest.mark.needs("native")

PROFILE: Profile = make_profile(
    [
        param("a", 3 * MIB, [1]),
        param("b", MIB, [2]),
        act("x", 2 * MIB, 1, 4, [2]),
        act("y", MIB, 2, 5, [3]),
        act("z", 4 * MIB, 0, 3, [1]),
    ],
    6,
)
PERSISTENT, TRANSIENT = (0, 1), (2, 3, 4)
TIERS = 3
NAMES = ("fast", "middle", "slow")

tiers_of_birth = st.lists(st.integers(0, TIERS - 1), min_size=5, max_size=5)
deeds = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.lists(st.sampled_from(TRANSIENT), min_size=1, unique=True)),
        st.tuples(st.just("release"), st.lists(st.sampled_from(TRANSIENT), min_size=1, unique=True)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 4), st.integers(0, TIERS - 1))),
        st.tuples(st.just("collect"), st.none()),
    ),
    max_size=40,
)


class Stage:
    """The blocks of PROFILE on three emulated tiers whose links take no time, and all that keeps their accounts."""

    def __init__(self, born_in: list[int], fast_bytes: int) -> None:
        machine = three_tiers(fast_bytes, middle_link=INSTANT, slow_link=INSTANT, kind="emulated")
        blocks = transient_plan(PROFILE, [0] * 5, fast_bytes=fast_bytes).blocks
        self.plan: Plan = replace(
            transient_plan(PROFILE, [0] * 5, fast_bytes=fast_bytes),
            blocks=tuple(replace(block, tier=tier) for block, tier in zip(blocks, born_in, strict=True)),
            tier_names=NAMES,
            capacity_bytes=(fast_bytes, 1 << 30, 1 << 40),
        )
        self.mover = NativeMover(fast_bytes)
        tiers = open_tiers(machine)
        job = JobMemory(lambda block: [], self._never_warns)
        self.table = BlockTable(self.plan, tiers)
        self.moves = Moves(tiers, self.mover, self.table, job.ranges)
        self.residents = Residents(self.plan, tiers, job.ranges, self.mover, self.table)
        self.transients = Transients(self.plan, tiers, job, self.mover, self.table)
        self.recorder = RunRecorder()
        births = BirthNodes(self.plan, (None,) * TIERS, job.ranges, self.mover.bind_untouched)
        self.outcomes = Outcomes(self.plan, job, self.table, births, self.recorder, PageAudit(self.plan, 0))
        self.block_mover = BlockMover(self.moves, self.table, self.outcomes, job.clock)

    @staticmethod
    def _never_warns(sentence: str) -> None:
        raise AssertionError(sentence)

    def do(self, deed: str, what: object) -> None:
        """One of `deeds`, if it can be done now."""
        if deed == "reserve":
            born = [block for block in what if not self.table.held[block]]  # type: ignore[attr-defined]
            room = sum(self.table.nbytes[block] for block in born if self.plan.blocks[block].tier == FAST)
            _, unplaced = self.transients.reserve(born, room)
            assert all(birth.tier == FAST + 1 for birth in unplaced)
        elif deed == "release":
            self.block_mover.end(what)  # type: ignore[arg-type]
            self.transients.release(what)  # type: ignore[arg-type]
        elif deed == "move":
            self.move(*what)  # type: ignore[misc]
        else:
            self.block_mover.collect()

    def move(self, block: int, target: int) -> None:
        source = self.table.tier[block]
        if FAST not in (source, target) or source == target:
            return
        move = Move(0, 0, block, source, target, self.table.nbytes[block], "evict" if target else "prefetch")
        self.outcomes.refused(self.block_mover.begin([move]).refused)

    def settle(self) -> None:
        """Nothing is under way any more."""
        self.block_mover.finish()
        assert not self.moves.all()
        assert not self.moves.blocks


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tiers_of_birth, st.integers(4, 11), deeds)
def test_accounts_are_the_sum_of_blocks(born_in: list[int], fast_mib: int, done: list[tuple[str, object]]) -> None:
    stage = Stage(born_in, fast_mib * MIB)
    try:
        stage.residents.place()
        stage.residents.place_others()
        for deed, what in done:
            stage.do(deed, what)
        stage.settle()
        table, held = stage.table, stage.mover.held()
        alive = [block for block in range(5) if table.held[block]]
        for block in alive:
            assert sum(table.spread(block)) == table.nbytes[block]
        for tier in range(TIERS):
            assert held.bytes_in[tier] == sum(table.bytes_in[tier][block] for block in alive)
        assert held.most_fast_bytes <= fast_mib * MIB
        assert held.in_flight_bytes == 0
        outcomes = Counter(stage.recorder.run(NAMES, 0, emulated=True).migrations["outcome"].tolist())
        assert sum(outcomes.values()) == stage.recorder.totals.migrations
        stage.transients.give_back(held.bytes_in)
        assert stage.mover.held().bytes_in[:TIERS] == (0,) * TIERS
    finally:
        stage.mover.close()


layers_told = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(0, 10**9), st.integers(0, 10**9)
)


@given(st.lists(st.tuples(st.lists(layers_told, max_size=6), st.booleans(), st.integers(0, 10**9)), max_size=20))
def test_what_is_recorded_adds_up(steps: list[tuple[list[tuple[int, int, int, int, int]], bool, int]]) -> None:
    recorder, now = RunRecorder(), 1000
    recorder.began_ns = now
    recorder.begin_step(now)
    for layers, in_step, unmanaged in steps:
        for layer, (took, stall, slow, served, high) in enumerate(layers):
            recorder.begin_layer(now, stall)
            now += took
            recorder.end_layer(layer, now, (slow, served, served + 1), (high, 7, 11), 13)
        recorder.end_step(now, in_step=in_step, unmanaged_bytes=unmanaged)
    run = recorder.run(NAMES, 0, emulated=True)
    rows = [row for layers, _, _ in steps for row in layers]
    assert recorder.step == len(run.steps) == run.counters.steps == len(steps)
    assert run.counters.slow_ns == sum(row[2] for row in rows)
    assert run.counters.served_fast_bytes == sum(row[3] for row in rows) == run.counters.touched_bytes - len(rows)
    assert run.counters.stall_ns == run.steps["stall_ns"].sum() == run.layers["stall_ns"].sum()
    assert run.steps["duration_ns"].sum() == run.layers["duration_ns"].sum() == now - 1000
    assert run.counters.fast_peak_bytes == max((row[4] for row in rows), default=0)
    assert run.counters.steps_out_of_step == sum(not in_step for _, in_step, _ in steps)
    assert run.steps["unmanaged_bytes"].tolist() == [unmanaged for _, _, unmanaged in steps]
    assert len(run.held) == 2 * len(rows)
