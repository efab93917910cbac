"""What fails, comes late or goes out of step costs time: the engine goes on, says so, and finds back."""

from __future__ import annotations

import errno
import platform
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sentinel.core.errors import NativeError, TierError
from sentinel.core.run import OUTCOMES, Run
from sentinel.migration.move import Move
from sentinel.migration.mover import NativeMover
from sentinel.migration.mover_order import Order
from sentinel.system import native
from tests.builders import GB, MIB, act, make_profile, param, persistent_plan
from tests.unit.engine_builders import INSTANT, HandClock, Running, applied, emulated_machine, transient_plan

pytestmark = pytest.mark.needs("native")

CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}[platform.machine()]

# As in test_engine: a and b take turns in a tier that holds one of them.
SWAP = make_profile([param("a", 4 * MIB, [1, 2]), param("b", 4 * MIB, [5, 6]), param("c", MIB, range(8))], 8)
SWAP_PLAN = persistent_plan(
    SWAP, [1, 1, 0], [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)], fast_bytes=5 * MIB
)
MACHINE = emulated_machine(5 * MIB, promote=4 * GB, demote=4 * GB, slow_bw=50 * GB)


def fail_the_next_transfer() -> None:
    native.library().sn_system_fail(CLOCK_NANOSLEEP, 1, errno.EIO)


def rows(run: Run, outcome: str) -> list[tuple[int, int, int]]:
    """(step, block, target) of the migrations that ended so."""
    found = run.migrations[run.migrations["outcome"] == OUTCOMES.index(outcome)]
    return list(zip(found["step"].tolist(), found["block"].tolist(), found["target"].tolist(), strict=True))


def stepwise(running: Running, fail_in: int, layers: int = 8) -> None:
    """One step in which every transfer is let end before the next tick; the one that begins at `fail_in` fails."""
    for layer in [*range(1, layers), 0]:
        if layer == fail_in:
            fail_the_next_transfer()
        running.tick(layer)
        running.let_land()


def test_a_failed_demotion_leaves_its_block_fast_and_the_plan_recovers() -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE) as running:
        running.let_land()
        stepwise(running, fail_in=3)  # a stays, so b finds no room
        stepwise(running, fail_in=-1)
        stepwise(running, fail_in=-1)
        run = running.engine.end_run()
    assert rows(run, "failed") == [(0, 0, 1)]
    assert (0, 1, 0) in rows(run, "skipped")
    assert run.counters.case2 == 1
    assert run.layers["fast_bytes"].max() <= 5 * MIB
    assert run.counters.overflow_bytes == 0
    assert len(running.said) == 1
    assert "Input/output error" in running.said[0]
    assert "a (4.00 MiB)" in running.said[0]
    assert run.counters.stayed["EIO"] == 1
    # the next step is as planned again: b arrives
    assert (1, 1, 0) in rows(run, "done")
    assert (2, 1, 0) in rows(run, "done")


def no_memory_for(call: int, monkeypatch: pytest.MonkeyPatch, errno_: int = errno.ENOMEM) -> None:
    """The `call`-th job from now on is refused, as the native mover refuses one."""
    left = [call]
    submit = NativeMover.submit_all

    def refuse_one(mover: NativeMover, orders: Sequence[Order]) -> int:
        refused = 0 < left[0] <= len(orders)
        if not refused or len(orders) == 1:
            left[0] -= len(orders)
        if refused:  # of several, none
            raise NativeError("sn_mover_submit_all", errno_)
        return submit(mover, orders)

    monkeypatch.setattr(NativeMover, "submit_all", refuse_one)


def test_a_migration_that_there_is_no_memory_for_is_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE) as running:
        running.let_land()
        no_memory_for(1, monkeypatch)
        stepwise(running, fail_in=-1)  # a stays, so b finds no room
        stepwise(running, fail_in=-1)
        stepwise(running, fail_in=-1)
        run = running.engine.end_run()
    assert rows(run, "failed") == [(0, 0, 1)]
    assert (0, 1, 0) in rows(run, "skipped")
    assert run.layers["fast_bytes"].max() <= 5 * MIB
    assert len(running.said) == 1
    assert "Cannot allocate memory" in running.said[0]
    assert "a (4.00 MiB)" in running.said[0]
    assert (1, 1, 0) in rows(run, "done")
    assert (2, 1, 0) in rows(run, "done")


def test_other_refusals_of_the_mover_are_no_matter_of_one_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE) as running:
        running.let_land()
        no_memory_for(1, monkeypatch, errno.ESHUTDOWN)
        with pytest.raises(NativeError):
            stepwise(running, fail_in=-1)


def test_a_failed_promotion_is_served_slow_and_costs_time_only() -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE) as running:
        running.let_land()
        stepwise(running, fail_in=4)  # b
        stepwise(running, fail_in=-1)
        run = running.engine.end_run()
    assert rows(run, "failed") == [(0, 1, 0)]
    assert (0, 1, 1) in rows(run, "already there")
    slow = run.layers["slow_ns"].reshape(2, 8)
    assert (slow[0, 5:7] > 0).all()
    assert not slow[1, 5:7].any()


def test_in_tests_a_failure_raises() -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE, strict=True) as running:
        running.let_land()
        with pytest.raises(TierError, match=r"tier slow: moving a .*to it left 4\.00 MiB") as raised:
            stepwise(running, fail_in=3)
        assert (raised.value.errno, raised.value.block) == (errno.EIO, 0)


@pytest.mark.parametrize("nth", range(1, 12))
def test_whichever_transfer_fails_the_budget_holds_and_accounts_balance(nth: int) -> None:
    profile = make_profile([param("a", 4 * MIB, [1, 2]), param("b", 4 * MIB, [5, 6]), act("x", MIB, 2, 7, [6])], 8)
    moves = [(0, 0, 1, 3, 4), (2, 0, 1, 3, 4), (1, 1, 0, 4, 5), (2, 1, 0, 5, 6), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)]
    plan = transient_plan(profile, [1, 1, 0], moves, fast_bytes=5 * MIB)
    with applied(plan, profile, MACHINE) as running:
        running.let_land()
        native.library().sn_system_fail(CLOCK_NANOSLEEP, nth, errno.EIO)
        for _ in range(3):
            stepwise(running, fail_in=-1)
        native.library().sn_system_fail(CLOCK_NANOSLEEP, 0, 0)
        stepwise(running, fail_in=-1)
        run = running.engine.end_run()
        held = running.engine._mover.held()
    assert run.counters.failed == 1
    assert run.layers["fast_bytes"].max() <= 5 * MIB
    assert held.overflows == 0
    assert held.in_flight_bytes == 0
    assert sum(held.bytes_in) == 8 * MIB  # at layer 0 only a and b are there
    last = run.layers[run.layers["step"] == 3]
    assert (last["served_fast_bytes"] == last["touched_bytes"])[[1, 2, 5, 6]].all()


def test_out_of_step_nothing_starts_and_afterwards_blocks_drift_back() -> None:
    machine = emulated_machine(5 * MIB, promote=INSTANT, demote=INSTANT)
    with applied(SWAP_PLAN, SWAP, machine, strict=True) as running:
        running.let_land()
        running.tick(1, 2, 3)
        running.let_land()
        running.lose()
        before = running.engine._moves.all()
        running.tick(5, 6)  # ticks of a stranger: ignored
        assert running.engine._moves.all() == before
        running.tick(0)
        running.let_land()
        for _ in range(2):
            stepwise(running, fail_in=-1)
        run = running.engine.end_run()
    assert run.steps["in_step"].tolist() == [False, True, True]
    assert run.counters.steps_out_of_step == 1
    assert run.layers["fast_bytes"].max() <= 5 * MIB
    back = run.layers[run.layers["step"] == 2]
    assert (back["served_fast_bytes"] == back["touched_bytes"]).all()


def test_a_step_cut_short_while_a_block_was_fast_sends_it_back() -> None:
    with applied(SWAP_PLAN, SWAP, MACHINE, strict=True) as running:
        running.let_land()
        for layer in (1, 2, 3, 4, 5):
            running.tick(layer)
            running.let_land()
        running.tick(0)  # b is fast here, where the plan has it slow
        running.let_land()
        stepwise(running, fail_in=-1)
        run = running.engine.end_run()
    assert run.counters.sent_back == 1
    assert run.steps["in_step"].tolist() == [False, True]
    assert run.layers["fast_bytes"].max() <= 5 * MIB
    last = run.layers[run.layers["step"] == 1]
    assert (last["served_fast_bytes"] == last["touched_bytes"]).all()


def test_a_step_cut_short_buries_its_transients() -> None:
    profile = make_profile([act("x", 2 * MIB, 1, 5, [4]), act("g", MIB, 4, 8, [0])], 6)
    plan = transient_plan(profile, [0, 0], fast_bytes=3 * MIB)
    with applied(plan, profile, emulated_machine(3 * MIB), strict=True) as running:
        running.tick(1, 2, 0, 1, 2, 0)
        assert running.engine._mover.held().fast_bytes == MIB  # g, which wraps, from the step before
        running.step(2)
        run = running.engine.end_run()
    assert run.counters.overflow_bytes == 0
    assert not run.counters.born_slow
    assert run.steps["in_step"].tolist() == [False, False, True, True]


def test_a_death_in_flight_is_waited_for_and_leaves_no_account() -> None:
    profile = make_profile([act("x", 4 * MIB, 1, 3, [2])], 6)
    plan = transient_plan(profile, [0], [(0, 0, 1, 2, 3)], fast_bytes=4 * MIB)
    machine = emulated_machine(4 * MIB, demote=8 * MIB)  # half a second, lest it end before the tick on a busy host
    with applied(plan, profile, machine, strict=True) as running:
        for _ in range(3):
            running.tick(1, 2)
            running.let_start()
            running.tick(3, 4, 5, 0)  # it dies while it is on its way
        held = running.engine._mover.held()
        run = running.engine.end_run()
    assert (sum(held.bytes_in), held.in_flight_bytes) == (0, 0)
    assert run.counters.late == 3
    assert (run.layers["stall_ns"].reshape(3, 6)[:, 3] > 0).all()
    assert running.discarded == []  # nothing real moved


def test_the_wait_for_a_death_in_flight_is_timed_by_the_clock_that_the_engine_is_given() -> None:
    profile = make_profile([act("x", 4 * MIB, 1, 3, [2])], 6)
    plan = transient_plan(profile, [0], [(0, 0, 1, 2, 3)], fast_bytes=4 * MIB)
    hand = HandClock()
    with applied(plan, profile, emulated_machine(4 * MIB, demote=8 * MIB), clock=hand.clock, strict=True) as running:
        end = running.engine._moves.end

        def end_by_hand(block: int) -> None:
            hand.ns += 7_000_000
            end(block)

        running.engine._moves.end = end_by_hand  # type: ignore[method-assign]
        running.step()
        run = running.engine.end_run()
    assert run.layers["stall_ns"].tolist() == [0, 0, 0, 7_000_000, 0, 0]


def test_the_wait_for_a_births_room_is_timed_by_that_clock_too() -> None:
    profile = make_profile([act("x", 4 * MIB, 1, 4, [1]), act("y", 4 * MIB, 3, 5, [4])], 6)
    plan = transient_plan(profile, [0, 0], [(0, 0, 1, 2, 3)], fast_bytes=4 * MIB)
    hand = HandClock()
    with applied(plan, profile, emulated_machine(4 * MIB, demote=64 * MIB), clock=hand.clock) as running:
        reserve = running.engine._mover.reserve

        def reserve_by_hand(nbytes: int) -> bool:
            hand.ns += 3_000_000
            return reserve(nbytes)

        running.engine._mover.reserve = reserve_by_hand  # type: ignore[method-assign]
        running.step()
        run = running.engine.end_run()
    assert run.layers["stall_ns"].tolist() == [0, 0, 0, 3_000_000, 0, 0]


def test_moves_of_a_layer_are_one_submission_and_the_one_without_memory_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = make_profile([param("a", MIB, [0]), param("b", MIB, [0])], 4)
    plan = persistent_plan(
        profile, [0, 0], [(0, 0, 1, 1, 2), (1, 0, 1, 1, 2), (0, 1, 0, 3, 4), (1, 1, 0, 3, 4)], fast_bytes=2 * MIB
    )
    with applied(plan, profile, emulated_machine(2 * MIB, promote=INSTANT, demote=INSTANT)) as running:
        no_memory_for(1, monkeypatch)
        stepwise(running, fail_in=-1, layers=4)
        monkeypatch.undo()
        counts, submit = list[int](), NativeMover.submit_all

        def count(mover: NativeMover, orders: Sequence[Order]) -> int:
            counts.append(len(orders))
            return submit(mover, orders)

        monkeypatch.setattr(NativeMover, "submit_all", count)
        stepwise(running, fail_in=-1, layers=4)
        run = running.engine.end_run()
    assert counts == [2, 2]
    assert rows(run, "failed") == [(0, 0, 1)]
    assert rows(run, "done") == [(0, 1, 1), (0, 1, 0), (1, 0, 1), (1, 1, 1), (1, 0, 0), (1, 1, 0)]
    assert (len(running.said), "a (1.00 MiB)" in running.said[0]) == (1, True)


def test_a_block_that_leaves_while_it_is_looked_at_is_served_by_where_it_goes() -> None:
    """The look ends first: it found the block in fast memory, and the demotion behind it is still under way."""
    profile = make_profile([param("a", 4 * MIB, range(8))], 8)
    plan = persistent_plan(profile, [0])
    # nothing takes 0.5 s up, which is the look; 4 MiB take 2 s down
    machine = emulated_machine(8 * MIB, demote=2 * MIB, slow_bw=50 * GB)
    links = (replace(machine.link(1, 0), latency_ns=500_000_000), machine.link(0, 1))
    with applied(plan, profile, replace(machine, links=links)) as running:
        engine = running.engine
        look = Move(0, 1, 0, 1, 0, 4 * MIB, "stray")
        assert engine._moves.look_at(look, first=True).under_way == [look]
        running.let_start()
        evict = Move(0, 1, 0, 0, 1, 4 * MIB, "evict")
        engine._block_mover.begin([evict])
        engine._mover.wait(look.job)
        engine._block_mover.collect()
        assert engine._moves.of(0) in ([evict], [])  # where this thread had to wait for 2 s, it has ended too
        assert engine._table.served_fast_bytes == [0] * 8
        assert min(engine._table.slow_ns) > 0
        running.let_land()
        engine._block_mover.collect()
        assert engine._table.tier[0] == 1
