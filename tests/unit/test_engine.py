"""The engine on an emulated tier: what it moves, when, within which budget, and what it writes down."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.laws import check
from sentinel.core.machine import Link, Machine
from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES, Run
from sentinel.core.uses import block_uses
from sentinel.migration.engine import Engine
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Move
from sentinel.migration.moves import Begun
from sentinel.migration.page_audit import HURRIED_STEPS, Check
from sentinel.migration.run_recorder import FIRST_STEPS, LAST_STEPS
from sentinel.migration.trials import BETWEEN, TRIES
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param, persistent_plan
from tests.processes import threads, until
from tests.unit.engine_builders import INSTANT, HandClock, Running, applied, emulated_machine, transient_plan

pytestmark = pytest.mark.needs("native")

# Two tensors take turns in a fast tier that holds one of them and a third that stays.
SWAP = make_profile([param("a", 4 * MIB, [1, 2]), param("b", 4 * MIB, [5, 6]), param("c", MIB, range(8))], 8)
SWAP_PLAN = persistent_plan(
    SWAP, [1, 1, 0], [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)], fast_bytes=5 * MIB
)


def steps(running: Running, times: int) -> None:
    """Steps in which what begins with layer 0 is under way by the next tick, and the rest lands within the step."""
    for _ in range(times):
        running.let_start()
        running.tick(1, 2, 3, 4, 5, 6, 7)
        running.let_land()
        running.tick(0)


def test_a_plan_without_migrations_moves_delays_and_stalls_nothing() -> None:
    profile = make_profile([param("a", MIB, [1]), act("x", MIB, 1, 2)], 4)
    plan = transient_plan(profile, [0, 0], fast_bytes=4 * MIB)
    with applied(plan, profile, emulated_machine(4 * MIB), strict=True) as running:
        running.step(3)
        run = running.engine.end_run()
    assert len(run.migrations) == 0
    assert run.layers["slow_ns"].sum() == run.counters.injected_ns == 0
    assert run.counters.steps == len(run.steps) == 3
    assert run.counters.served_fast_bytes == run.counters.touched_bytes == 3 * 2 * MIB
    assert run.layers["fast_bytes"].reshape(3, 4).tolist() == [[MIB, 2 * MIB, MIB, MIB]] * 3
    assert running.said == []
    assert run.events == ()
    assert run.emulated
    assert run.kind == "executed"


def test_the_moves_of_a_layer_do_not_wait_for_looks_at_all_that_a_step_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mover takes moves in the order of submission: a look ahead of a promotion makes it late."""
    profile = make_profile([param(f"p{i}", MIB, range(1, 4)) for i in range(64)], 4)
    moves = [(63, 0, 1, 3, 4), (63, 1, 0, 0, 1)]  # a promotion that begins with layer 0
    plan = persistent_plan(profile, [1] * 64, moves, fast_bytes=4 * MIB)
    machine = emulated_machine(4 * MIB, slow_bw=100 * GB)
    asked: list[tuple[int, str, int]] = []
    with applied(plan, profile, machine) as running:
        engine, mover = running.engine, running.engine._block_mover
        begin, look_at = mover.begin, mover.look_at

        def noted_begin(moves: list[Move]) -> Begun:
            asked.extend((move.layer, "move", move.block) for move in moves)
            return begin(moves)

        def noted_look(checks: list[Check], step: int, layer: int) -> None:
            asked.extend((layer, "look", check.block) for check in checks)
            look_at(checks, step, layer)

        monkeypatch.setattr(mover, "begin", noted_begin)
        monkeypatch.setattr(mover, "look_at", noted_look)
        engine._has_pages = True
        engine.look_soon()
        for layer in (1, 2, 3, 0, 1, 2, 3):
            running.let_land()
            running.tick(layer)
    looks = [(layer, block) for layer, kind, block in asked if kind == "look"]
    assert [layer for layer, _ in looks] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({block for _, block in looks}) == 64 // HURRIED_STEPS
    at_0 = [kind for layer, kind, _ in asked if layer == 0]
    assert at_0 == ["move", "look", "look"]


def test_what_lives_in_slow_memory_is_delayed_by_what_its_accesses_cost() -> None:
    # 8 MiB read at 1 GB/s instead of 100: 8,304,722 ns in each of two layers
    profile = make_profile([param("a", 8 * MIB, [1, 3])], 5)
    plan = persistent_plan(profile, [1])
    began = time.monotonic_ns()
    with applied(plan, profile, emulated_machine(64 * MIB, slow_bw=GB), strict=True) as running:
        running.step(3)
        run = running.engine.end_run()
    took = time.monotonic_ns() - began
    cost = round(8 * MIB * (1 - 0.01))
    assert run.layers["slow_ns"].reshape(3, 5).tolist() == [[0, cost, 0, cost, 0]] * 3
    assert took >= run.counters.injected_ns >= 3 * 2 * cost
    assert run.layers["duration_ns"].sum() >= 3 * 2 * cost
    assert run.counters.served_fast_bytes == 0


def test_what_moves_is_copied_and_no_byte_of_it_changes() -> None:
    # Block 0 can be read, block 1 cannot: that costs its copies, and no move.
    memory = mmap.mmap(-1, 4 * MIB)
    memory[:] = bytes(range(256)) * (4 * MIB // 256)
    anchor = ctypes.c_char.from_buffer(memory)
    closed = mmap.mmap(-1, 4 * MIB)
    closed[:] = memory[:]
    there = ctypes.addressof(ctypes.c_char.from_buffer(closed))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(there), ctypes.c_size_t(4 * MIB), 0) == 0
    pieces = [[(ctypes.addressof(anchor), 4 * MIB)], [(there, 4 * MIB)], []]
    machine = emulated_machine(5 * MIB, promote=4 * GB, demote=4 * GB)
    with applied(SWAP_PLAN, SWAP, machine, strict=True, ranges=lambda block: pieces[block]) as running:
        running.late_promotions(waited_for=True)
        running.step(3)
        run = running.engine.end_run()
    moved = run.migrations[run.migrations["moved_bytes"] > 0]
    assert set(moved["outcome"].tolist()) <= {OUTCOMES.index("done"), OUTCOMES.index("late")}
    copied, not_copied = (int(moved["moved_bytes"][moved["block"] == block].sum()) for block in (0, 1))
    assert run.counters.copied_bytes >= copied > 4 * MIB  # what moved before the first step is in no row
    assert run.counters.uncopied_bytes >= not_copied > 4 * MIB
    assert run.counters.copy_cpu_ns > 0
    assert memory[:] == bytes(range(256)) * (4 * MIB // 256)


def test_short_delays_add_up_and_none_is_lost() -> None:
    # 1,009 layers of 3,104 ns each: none worth a sleep, together 3.1 ms
    profile = make_profile([param("a", 4096, range(1009))], 1009)
    plan = persistent_plan(profile, [1])
    with applied(plan, profile, emulated_machine(64 * MIB, slow_bw=4096 * 10**9 // 3145), strict=True) as running:
        running.step(2)
        run = running.engine.end_run()
    owed = run.counters.slow_ns
    assert owed == 2 * 1009 * 3104
    assert run.counters.injected_ns >= owed - 50_000


def test_tensors_take_turns_in_a_budget_that_is_never_exceeded() -> None:
    machine = emulated_machine(5 * MIB, promote=4 * GB, demote=4 * GB)
    check(SWAP_PLAN, SWAP, machine)
    with applied(SWAP_PLAN, SWAP, machine, strict=True) as running:
        running.late_promotions(waited_for=True)  # each transfer is let end
        running.step(3)
        run = running.engine.end_run()
    assert run.layers["fast_bytes"].max() == run.steps["fast_peak_bytes"].max() == 5 * MIB
    assert run.counters.overflow_bytes == 0
    moves = run.migrations[run.migrations["moved_bytes"] > 0]
    down = {row["stop_ns"] for row in moves[moves["target"] == 1]}
    for row in moves[moves["target"] == 0][1:]:  # the first one found the tier empty
        assert any(stop <= row["start_ns"] for stop in down)
    assert (moves["stop_ns"] - moves["start_ns"] == -(-4 * MIB * 10**9 // (4 * GB))).all()
    assert run.counters.served_fast_bytes == run.counters.touched_bytes == 3 * (4 * 4 + 8) * MIB
    assert run.layers["slow_bytes"].max() <= 8 * MIB


def test_an_executed_step_equals_the_simulated_one_where_time_plays_no_part() -> None:
    machine = emulated_machine(5 * MIB, promote=INSTANT, demote=INSTANT, slow_bw=GB)
    profile = make_profile(
        [
            param("a", 4 * MIB, [1, 2, 5]),
            param("b", 4 * MIB, [5, 6]),
            param("c", MIB, range(8)),
            act("x", MIB, 2, 5, [4]),
        ],
        8,
        layer_ns=10**6,
    )
    plan = transient_plan(
        profile,
        [1, 1, 0, 1],
        [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 0, 1)],
        fast_bytes=5 * MIB,
    )
    check(plan, profile, machine)
    said = simulate(plan, profile, machine)
    with applied(plan, profile, machine, strict=True) as running:
        running.late_promotions(waited_for=True)
        running.step(3)
        did = running.engine.end_run()
    assert said.layers["slow_ns"].sum() > 0
    steady = did.layers[did.layers["step"] == 2]
    assert abs(steady["slow_ns"] - said.layers["slow_ns"]).max() <= 2  # each rounds in its own way
    assert steady["served_fast_bytes"].tolist() == said.layers["served_fast_bytes"].tolist()
    assert steady["touched_bytes"].tolist() == said.layers["touched_bytes"].tolist()
    mine, theirs = (
        sorted(zip(table["layer"].tolist(), table["block"].tolist(), table["target"].tolist(), strict=True))
        for table in (did.migrations[did.migrations["step"] == 2], said.migrations)
    )
    assert mine == theirs


# The promotion of "a" takes 20 ms, so it is late as layer 1 begins. On the test's clock a wait for it takes LATE_NS,
# and nothing else takes time but the delays of slow reads.
LATE_NS = 210 * 10**6
LATE_PLAN = persistent_plan(SWAP, [1, 1, 0], [(0, 0, 1, 3, 4), (0, 1, 0, 0, 1)], fast_bytes=5 * MIB)


def run_until_decided(clock: HandClock | None, *, slow_bw: float) -> Run:
    """Steps of LATE_PLAN until test and trial has decided, and three more."""
    machine = emulated_machine(5 * MIB, promote=GB // 5, demote=INSTANT, slow_bw=slow_bw)
    more = {} if clock is None else {"clock": clock.clock}
    with applied(LATE_PLAN, SWAP, machine, strict=True, **more) as running:
        if clock is not None:
            running.each_wait_takes(LATE_NS, clock)
        while not running.engine.so_far().counters.trials:  # a busy host may let a promotion arrive in time
            steps(running, 1)
        steps(running, 3)
        return running.engine.end_run()


def test_late_promotions_are_tried_with_and_without_waiting_in_turn() -> None:
    run = run_until_decided(HandClock(), slow_bw=50 * GB)  # leaving costs 83 us for each read of 4 MiB
    assert run.counters.trials == 1
    ((step, decision),) = run.trials
    assert step >= BETWEEN + 2 * TRIES - 1
    assert (decision.layer, decision.name, decision.waits) == (1, "layer1", False)
    waited = run.steps["stall_ns"]
    assert set(waited.tolist()) == {0, LATE_NS}
    assert (waited > 0).sum() == BETWEEN + TRIES
    assert not waited[-4:].any()


def test_where_waiting_is_faster_it_goes_on_waiting() -> None:
    run = run_until_decided(HandClock(), slow_bw=GB // 50)  # each of two slow reads of 4 MiB takes as long as the wait
    assert run.counters.trials == 1
    assert run.trials[0][1].waits
    stall, served = run.steps["stall_ns"], run.layers["served_fast_bytes"].reshape(-1, 8)[:, 1]
    assert set(stall.tolist()) == {0, LATE_NS}
    assert (stall > 0).sum() > BETWEEN + TRIES  # and goes on
    assert (stall == 0).sum() >= TRIES
    assert (served[stall > 0] == 5 * MIB).all()


def test_a_trial_on_the_real_clock_comes_to_a_decision() -> None:
    """Which one is for the host to say: how long its waits take."""
    run = run_until_decided(None, slow_bw=50 * GB)
    assert run.counters.trials == 1
    assert [decision.layer for _, decision in run.trials] == [1]


def test_what_is_left_behind_goes_on_if_it_is_used_later_too() -> None:
    # Two promotions are late for layer 1, the second has not started. Only "b" is used after that layer as well.
    profile = make_profile([param("a", MIB, [1]), param("b", MIB, [1, 6]), param("c", MIB, [3])], 8)
    machine = emulated_machine(2 * MIB, promote=GB // 50, demote=INSTANT)
    for first, second, outcomes in ((0, 1, {"late"}), (1, 0, {"late", "skipped"})):
        moves = [(0, 0, 1, 2, 3), (first, 1, 0, 0, 1), (second, 1, 0, 0, 1), (1, 0, 1, 7, 8)]
        plan = persistent_plan(profile, [1, 1, 1], sorted(moves, key=lambda m: (m[3], m[2] == 0)), fast_bytes=2 * MIB)
        with applied(plan, profile, machine, strict=True) as running:
            running.late_promotions(waited_for=False)
            running.let_start()
            running.tick(1)
            running.let_land()
            running.tick(2)
            run = running.engine.end_run()
        up = run.migrations[run.migrations["target"] == 0]
        assert {OUTCOMES[row["outcome"]] for row in up} == outcomes


def test_what_the_slow_tier_cannot_serve_in_place_is_always_waited_for() -> None:
    machine = emulated_machine(5 * MIB, promote=GB // 10, demote=INSTANT, addressable=False)
    plan = persistent_plan(SWAP, [1, 1, 0], [(0, 0, 1, 3, 4), (0, 1, 0, 0, 1)], fast_bytes=5 * MIB)
    with applied(plan, SWAP, machine, strict=True) as running:
        running.late_promotions(waited_for=False)  # where there is a choice
        while running.engine.so_far().counters.case3 < 4:  # late, unless this thread had to wait for a CPU
            steps(running, 1)
        run = running.engine.end_run()
    assert not run.counters.trials
    assert (run.layers["served_fast_bytes"].reshape(-1, 8)[:, 1] == 5 * MIB).all()


def test_transients_take_room_at_birth_and_give_it_back_at_death() -> None:
    profile = make_profile([act("x", 2 * MIB, 1, 3, [2]), act("y", 2 * MIB, 3, 5, [4]), act("z", MIB, 2, 4, [3])], 6)
    plan = transient_plan(profile, [0, 0, 1], fast_bytes=2 * MIB)
    with applied(plan, profile, emulated_machine(2 * MIB), strict=True) as running:
        running.step(3)
        run = running.engine.end_run()
    fast, slow = (run.layers[name].reshape(3, 6)[1].tolist() for name in ("fast_bytes", "slow_bytes"))
    assert fast == [0, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 0]
    assert slow == [0, 0, MIB, MIB, 0, 0]
    assert run.counters.overflow_bytes == 0
    assert not run.counters.born_slow
    assert not run.layers["stall_ns"].any()  # what room that is there takes to be taken is no wait


def three_tiers(plan: Plan, middle_bytes: int) -> tuple[Plan, Machine]:
    """The plan on a machine whose tier 1 has `middle_bytes`, before a third one with room for all."""
    machine = emulated_machine(plan.capacity_bytes[0], promote=INSTANT, demote=INSTANT)
    fast, middle = machine.tiers
    tiers = (fast, replace(middle, capacity_bytes=middle_bytes), replace(middle, name="slower"))
    links = (*machine.links, Link(0, 2, INSTANT), Link(2, 0, INSTANT))
    names, capacity = ("fast", "slow", "slower"), (plan.capacity_bytes[0], middle_bytes, 1 << 40)
    return replace(plan, tier_names=names, capacity_bytes=capacity), replace(machine, tiers=tiers, links=links)


def test_what_the_middle_tier_has_no_room_for_goes_to_the_last_one_and_comes_back() -> None:
    """It holds b when a, for which b waits, leaves fast memory."""
    moves = [(0, 0, 1, 3, 4), (1, 1, 0, 4, 5), (1, 0, 1, 7, 8), (0, 1, 0, 7, 8)]
    plan, machine = three_tiers(persistent_plan(SWAP, [0, 1, 0], moves, fast_bytes=5 * MIB), 4 * MIB)
    with applied(plan, SWAP, machine, strict=True) as running:
        running.late_promotions(waited_for=True)
        running.step(3)
        run = running.engine.end_run()
    middle = run.held_bytes(1)
    assert middle is not None
    assert middle.max() == 4 * MIB
    assert (run.counters.sent_further, run.counters.slow_overflow_bytes, run.counters.overflow_bytes) == (3, 0, 0)
    assert (run.layers["served_fast_bytes"] == run.layers["touched_bytes"]).all()
    of_a = run.migrations[run.migrations["block"] == 0]
    assert [(int(row["source"]), int(row["target"])) for row in of_a] == [(0, 2), (2, 0)] * 3
    assert {OUTCOMES[row["outcome"]] for row in of_a} <= {"done", "late"}
    ((_, sentence),) = run.events
    assert sentence == "a went to tier slower: its own had no room"


def test_births_that_the_middle_tier_has_no_room_for_go_to_the_last_one() -> None:
    profile = make_profile(
        [
            act("x", 2 * MIB, 1, 3, [2]),
            act("y", 2 * MIB, 2, 4, [3]),
            act("z", MIB, 2, 4, [3]),
            act("w", MIB, 2, 4, [3]),
        ],
        6,
    )
    plan, machine = three_tiers(transient_plan(profile, [1, 1, 1, 0], fast_bytes=4096), 3 * MIB)  # w has no room either
    with applied(plan, profile, machine) as running:
        running.step(3)
        run = running.engine.end_run()
    middle, last = run.held_bytes(1), run.held_bytes(2)
    assert middle is not None
    assert last is not None
    assert middle.reshape(3, 6)[1].tolist() == [0, 2 * MIB, 3 * MIB, MIB, 0, 0]
    assert last.reshape(3, 6)[1].tolist() == [0, 0, 3 * MIB, 3 * MIB, 0, 0]
    assert (run.counters.sent_further, run.counters.born_slow, run.counters.slow_overflow_bytes) == (3, 3, 0)


def test_a_birth_without_room_is_born_slow_and_said() -> None:
    profile = make_profile([act("x", 2 * MIB, 1, 3, [2]), act("y", 2 * MIB, 2, 4, [3])], 6)
    plan = transient_plan(profile, [0, 0], fast_bytes=3 * MIB)  # breaks law 1: 4 MiB in layer 2
    with applied(plan, profile, emulated_machine(3 * MIB, slow_bw=GB)) as running:
        running.step(3)
        run = running.engine.end_run()
    assert run.counters.born_slow == 3
    assert run.counters.overflow_bytes == 0
    assert run.steps["fast_peak_bytes"].max() == 2 * MIB
    assert len(run.events) == 1
    assert "y was born in slow memory" in run.events[0][1]
    slow = run.layers["slow_ns"].reshape(3, 6)
    assert (slow[:, 2:4] > 0).all()
    assert not slow[:, [0, 1, 4, 5]].any()


def test_a_transient_that_wraps_around_the_step_is_held_from_the_start() -> None:
    profile = make_profile([act("g", 2 * MIB, 4, 8, [0])], 6)
    plan = transient_plan(profile, [0], fast_bytes=2 * MIB)
    with applied(plan, profile, emulated_machine(2 * MIB), strict=True) as running:
        running.step(2)
        run = running.engine.end_run()
    assert (run.layers["fast_bytes"].reshape(2, 6) > 0).tolist() == [[True, True, False, False, True, True]] * 2


def test_a_saved_plan_needs_no_profile() -> None:
    plan = replace(SWAP_PLAN, uses=block_uses(SWAP_PLAN, SWAP))
    runs = []
    for given, profile in ((plan, None), (SWAP_PLAN, SWAP)):
        machine = emulated_machine(5 * MIB, promote=INSTANT, demote=INSTANT)
        with applied(given, profile, machine, strict=True) as running:
            running.late_promotions(waited_for=True)
            running.step(2)
            runs.append(running.engine.end_run())
    assert runs[0].counters.touched_bytes == runs[1].counters.touched_bytes > 0
    assert np.array_equal(runs[0].layers["served_fast_bytes"], runs[1].layers["served_fast_bytes"])


def test_a_long_run_keeps_the_first_and_last_steps_and_totals_of_all() -> None:
    profile = make_profile([param("a", 4096, [0, 1])], 2)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 0, 1)])
    with applied(plan, profile, emulated_machine(MIB, promote=INSTANT, demote=INSTANT)) as running:
        running.step(199)
        run = running.engine.end_run()
    assert run.counters.steps == 199
    assert run.steps["step"].tolist() == [*range(FIRST_STEPS), *range(199 - LAST_STEPS, 199)]
    assert len(run.layers) == 2 * len(run.steps)
    assert run.counters.migrations >= 199 > len(run.steps)
    assert run.counters.touched_bytes == 199 * 2 * 4096


def test_a_forked_child_ticks_without_an_effect() -> None:
    with applied(SWAP_PLAN, SWAP, emulated_machine(5 * MIB, promote=GB, demote=GB)) as running:
        running.tick(1, 2)
        child = os.fork()
        if child == 0:
            running.step(2)
            running.engine.end_run()
            running.engine.restore()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        running.tick(3, 4, 5, 6, 7, 0)
        assert running.engine.end_run().counters.steps == 1


def test_a_described_tier_cannot_be_applied_and_no_thread_stays() -> None:
    before = threads()
    with pytest.raises(CapabilityError, match=r"described only.*emulated:PRESET"):
        Engine(SWAP_PLAN, make_machine(5 * MIB), JobMemory(lambda block: [], print))
    until(lambda: threads() <= before)


def test_a_plan_for_another_number_of_tiers_is_refused() -> None:
    machine = emulated_machine(5 * MIB)
    third = replace(machine.tiers[1], name="slower")
    three = replace(machine, tiers=(*machine.tiers, third), links=(*machine.links, Link(0, 2, GB), Link(2, 0, GB)))
    with pytest.raises(UsageError, match=r"2 tiers.*has 3"):
        Engine(SWAP_PLAN, three, JobMemory(lambda block: [], print))
