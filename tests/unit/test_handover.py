"""One engine gives way to another: bytes are where they were, and go where the next plan wants them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import UsageError
from sentinel.core.machine import Link, Machine
from sentinel.core.plan import Plan
from sentinel.core.run import REASONS
from sentinel.core.step_follower import Position
from sentinel.core.units import PAGE_BYTES
from sentinel.core.uses import with_uses
from sentinel.migration.engine import Engine
from sentinel.migration.handover import Handover, Pieces
from sentinel.migration.job_memory import JobMemory
from sentinel.reports import build_report
from sentinel.tiers.tier import MOST_TIERS
from tests.builders import GB, MIB, act, make_profile, param
from tests.three_tiers import three_tiers
from tests.unit.engine_builders import HandClock, applied, emulated_machine, transient_plan

BASE = 1 << 40
PARAMS = [param("a", 4 * MIB, [1]), param("b", 4 * MIB, [3]), param("c", MIB, range(4))]
SHORT = make_profile([*PARAMS, act("x", MIB, 1, 2)], 4)
LONG = make_profile([*PARAMS, act("x", 3 * MIB, 1, 2), act("y", MIB, 1, 3)], 4)
BUDGET = 9 * MIB
FIRST = transient_plan(SHORT, [0, 1, 0, 0], fast_bytes=BUDGET)
OTHER = transient_plan(LONG, [1, 0, 0, 0, 0], fast_bytes=BUDGET)


def where(block: int) -> list[tuple[int, int]]:
    """Addresses of the persistent blocks; transients have none."""
    return [(BASE + 16 * MIB * block, (4 * MIB, 4 * MIB, MIB)[block])] if block < 3 else []


def engines(**more):
    machine = emulated_machine(BUDGET, **more)
    return applied(FIRST, SHORT, machine, ranges=where), applied(OTHER, LONG, machine, ranges=where)


@pytest.mark.needs("native")
def test_persistent_bytes_go_where_the_next_plan_wants_them_and_the_budget_holds() -> None:
    one, two = engines()
    with one as first, two as second:
        second.engine.hand_over()  # it was started by the builder: it rests until its turn
        first.step(2)
        for turn in range(4):
            here, there = (first, second) if turn % 2 == 0 else (second, first)
            there.engine.take_over(here.engine.hand_over(), in_step=True)
            there.let_land()
            there.step(3)
        runs = [running.engine.end_run() for running in (first, second)]
    for run, moved in zip(runs, (2, 2), strict=True):
        assert (run.layers["fast_bytes"] <= BUDGET).all()
        assert run.steps["in_step"].all()
        done = run.migrations[run.migrations["moved_bytes"] > 0]
        # a and b change places each time that a plan takes over, and never else.
        assert sorted(done["block"].tolist()) == [0] * moved + [1] * moved
    assert len(runs[0].steps) == 2 + 6
    assert len(runs[1].steps) == 6
    assert first.said == second.said == []


@pytest.mark.needs("native")
def test_an_engine_that_takes_over_late_begins_with_the_next_step() -> None:
    one, two = engines()
    with one as first, two as second:
        second.engine.hand_over()
        first.tick(1, 2)
        second.engine.take_over(first.engine.hand_over(), in_step=False)
        second.tick(3, 0, 1, 2, 3, 0)
        run, before = second.engine.end_run(), first.engine.end_run()
    assert run.steps["in_step"].tolist() == [False, True]
    assert len(run.layers) == 4
    assert len(before.layers) == len(before.steps) == 0
    assert (run.steps["fast_peak_bytes"] <= BUDGET).all()


@pytest.mark.needs("native")
def test_a_step_in_which_plans_change_twice_lasts_from_the_first_change_on() -> None:
    clock, machine = HandClock(), emulated_machine(BUDGET)
    others = [Engine(with_uses(OTHER, LONG), machine, JobMemory(where, print, clock=clock.clock)) for _ in range(2)]
    with applied(FIRST, SHORT, machine, ranges=where, clock=clock.clock) as first:
        clock.ns = 1_000
        first.tick(1)
        given = first.engine.hand_over()
        for engine in others:
            clock.ns += 100
            engine.take_over(given, in_step=False)
            given = engine.hand_over()
        others[1].take_over(given, in_step=False)
        clock.ns = 5_000
        others[1].begin_layer(Position(0, "cut short"))
        run = others[1].end_run()
        for engine in others:
            engine.restore()
    assert (run.steps["start_ns"].tolist(), run.steps["duration_ns"].tolist()) == ([0], [4_000])


@pytest.mark.needs("native")
def test_handing_over_to_the_same_plan_moves_nothing() -> None:
    one, _ = engines()
    with one as first:
        first.step(2)
        first.engine.take_over(first.engine.hand_over(), in_step=True)
        first.step(2)
        run = first.engine.end_run()
    assert not (run.migrations["moved_bytes"] > 0).any()
    assert len(run.steps) == 4


@pytest.mark.needs("native")
def test_the_time_of_a_run_begins_with_the_layer_in_which_its_engine_first_took_over() -> None:
    one, _ = engines()
    second = Engine(with_uses(OTHER, LONG), emulated_machine(BUDGET), JobMemory(where, print))
    with one as first:
        first.step(1)
        time.sleep(0.002)  # into layer 0, which is the other plan's
        second.take_over(first.engine.hand_over(), in_step=True)
        for layer in (1, 2, 3, 0):
            second.begin_layer(Position(layer, None if layer else "whole"))
        run = second.end_run()
        second.restore()
    assert run.steps["start_ns"][0] == run.layers["start_ns"][0] == 0
    assert (run.migrations["start_ns"] >= 0).all()
    assert run.layers["duration_ns"][0] >= 2_000_000


@pytest.mark.needs("native")
@pytest.mark.parametrize("slow_node", [None, 0])
def test_what_ends_brings_home_what_is_away_and_moves_nothing_else(slow_node: int | None) -> None:
    """The second plan wants `a` slow and `b` fast: nobody cares any more. On nodes `b` was away; else only accounts
    were, which end with the engine."""
    one, two = engines(slow_node=slow_node)
    with one as first, two as second:
        second.engine.hand_over()
        before = len(second.engine.end_run().migrations)
        first.step(1)
        second.engine.bring_home(first.engine.hand_over())
        rows = second.engine.end_run().migrations[before:]
    moves = [(row["block"], row["target"], REASONS[row["reason"]]) for row in rows]
    assert moves == ([] if slow_node is None else [(1, 0, "restore")])


def three_emulated() -> Machine:
    return three_tiers(BUDGET, kind="emulated")


def of_three_tiers(plan: Plan, tiers: list[int]) -> Plan:
    """`plan` for three tiers, each block in its own from the start."""
    blocks = tuple(replace(block, tier=tier) for block, tier in zip(plan.blocks, tiers, strict=True))
    return replace(
        plan, blocks=blocks, tier_names=("fast", "middle", "slow"), capacity_bytes=(BUDGET, 1 << 30, 1 << 40)
    )


@pytest.mark.needs("native")
def test_plans_of_three_tiers_give_way_and_bytes_go_from_one_slower_tier_to_another() -> None:
    """`a` goes from the middle tier to the slow one, `b` from the slow one to fast memory, `c` stays."""
    one, two = of_three_tiers(FIRST, [1, 2, 0, 0]), of_three_tiers(OTHER, [2, 0, 0, 0, 0])
    machine = three_emulated()
    with (
        applied(one, SHORT, machine, ranges=where) as first,
        applied(two, LONG, machine, ranges=where) as second,
    ):
        second.engine.hand_over()
        assert second.engine._mover.held().bytes_in == (0,) * MOST_TIERS
        first.step(2)
        assert first.engine._mover.held().bytes_in[:3] == (MIB, 4 * MIB, 4 * MIB)
        second.engine.take_over(first.engine.hand_over(), in_step=True)
        second.let_land()
        second.step(2)
        assert second.engine._mover.held().bytes_in[:3] == (5 * MIB, 0, 4 * MIB)
        run = second.engine.end_run()
        first.engine.take_over(second.engine.hand_over(), in_step=True)
        first.let_land()
        assert first.engine._mover.held().bytes_in[:3] == (MIB, 4 * MIB, 4 * MIB)
    moved = run.migrations[run.migrations["moved_bytes"] > 0]
    ways = sorted(moved[["block", "source", "target", "moved_bytes"]].tolist())
    assert ways == [(0, 1, 2, 4 * MIB), (1, 2, 0, 4 * MIB)]
    assert (run.layers["fast_bytes"] <= BUDGET).all()
    assert run.steps["in_step"].all()


@pytest.mark.needs("native")
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_block_that_lay_in_three_tiers_is_made_whole_in_any(wanted: int) -> None:
    a, b, c, x = FIRST.blocks
    parts = tuple(replace(a, offset=a.offset + at * MIB, nbytes=size * MIB) for at, size in ((0, 1), (1, 1), (2, 2)))
    cut = of_three_tiers(replace(FIRST, blocks=(*parts, b, c, x)), [0, 1, 2, 1, 0, 0])
    whole = of_three_tiers(transient_plan(SHORT, [wanted, 1, 0, 0], fast_bytes=BUDGET), [wanted, 1, 0, 0])

    def where_cut(block: int) -> list[tuple[int, int]]:
        return [(BASE + (0, 1, 2)[block] * MIB, (1, 1, 2)[block] * MIB)] if block < 3 else where(block - 2)

    machine = three_emulated()
    with (
        applied(cut, SHORT, machine, ranges=where_cut) as first,
        applied(whole, SHORT, machine, ranges=where) as second,
    ):
        second.engine.hand_over()
        first.step(2)
        assert first.engine._mover.held().bytes_in[:3] == (2 * MIB, 5 * MIB, 2 * MIB)
        second.engine.take_over(first.engine.hand_over(), in_step=True)
        second.let_land()
        second.step(2)
        held = second.engine._mover.held().bytes_in[:3]
        run = second.engine.end_run()
    there = [MIB, 4 * MIB, 0]  # c; and b, which both want in the middle
    there[wanted] += 4 * MIB
    assert list(held) == there
    (move,) = run.migrations[run.migrations["moved_bytes"] > 0]
    assert (move["block"], move["target"]) == (0, wanted)
    assert move["moved_bytes"] == move["nbytes"] == (4 - (1, 1, 2)[wanted]) * MIB


@pytest.mark.needs("native")
@pytest.mark.parametrize("middle_mib", [4, 7])
def test_a_middle_tier_that_is_full_takes_a_block_once_another_has_left_it(middle_mib: int) -> None:
    """`a` is in the middle tier and wanted in fast memory, `b` in the last and wanted in the middle: 4 MiB hold one."""

    def of(tiers: list[int]) -> Plan:
        plan = of_three_tiers(transient_plan(SHORT, [*tiers, 0, 0], fast_bytes=BUDGET), [*tiers, 0, 0])
        return replace(plan, capacity_bytes=(BUDGET, middle_mib * MIB, 1 << 40))

    machine = three_emulated()
    with (
        applied(of([1, 2]), SHORT, machine, ranges=where) as first,
        applied(of([0, 1]), SHORT, machine, ranges=where) as second,
    ):
        second.engine.hand_over()
        first.step(2)
        second.engine.take_over(first.engine.hand_over(), in_step=True)
        second.let_land()
        second.step(2)
        held = second.engine._mover.held()
        run = second.engine.end_run()
    assert held.bytes_in[:3] == (5 * MIB, 4 * MIB, 0)
    assert held.slow_overflow_bytes == 0
    assert (run.held["nbytes"][run.held["tier"] == 1] <= middle_mib * MIB).all()


@pytest.mark.needs("native")
def test_more_tiers_than_a_mover_keeps_apart_are_refused() -> None:
    machine = three_emulated()
    extra = tuple(replace(machine.tiers[2], name=f"slower {index}") for index in range(MOST_TIERS))
    links = (Link(index, 0, GB) for index in range(3, 3 + MOST_TIERS))
    back = (Link(0, index, GB) for index in range(3, 3 + MOST_TIERS))
    large = replace(machine, tiers=(*machine.tiers, *extra), links=(*machine.links, *links, *back))
    names = tuple(tier.name for tier in large.tiers)
    plan = replace(FIRST, tier_names=names, capacity_bytes=tuple(tier.capacity_bytes for tier in large.tiers))
    with pytest.raises(UsageError, match=rf"has 11 tiers, and plans are applied to {MOST_TIERS} at most"):
        Engine(plan, large, JobMemory(where, print))


@pytest.mark.needs("native")
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_block_that_the_other_plan_had_cut_is_made_whole(wanted: int) -> None:
    """A quarter of `a` is fast and the rest slow; then `a` is one block, and only the difference moves."""
    a, b, c, x = FIRST.blocks
    parts = (replace(a, nbytes=MIB), replace(a, offset=a.offset + MIB, nbytes=3 * MIB, tier=1), b, c, x)
    cut = replace(FIRST, blocks=parts)
    whole = transient_plan(SHORT, [wanted, 1, 0, 0], fast_bytes=BUDGET)

    def where_cut(block: int) -> list[tuple[int, int]]:
        return [(BASE + MIB * block, (MIB, 3 * MIB)[block])] if block < 2 else where(block - 1)

    machine = emulated_machine(BUDGET)
    with (
        applied(cut, SHORT, machine, ranges=where_cut) as first,
        applied(whole, SHORT, machine, ranges=where) as second,
    ):
        second.engine.hand_over()
        first.step(2)
        second.engine.take_over(first.engine.hand_over(), in_step=True)
        second.let_land()
        second.step(2)
        run = second.engine.end_run()
        held = second.engine._mover.held()
    (move,) = run.migrations[run.migrations["moved_bytes"] > 0]
    assert move["moved_bytes"] == move["nbytes"] == (MIB if wanted else 3 * MIB)
    assert move["target"] == wanted
    assert held.fast_bytes == MIB + (0 if wanted else 4 * MIB)  # c, and a
    build_report(plan=whole, executed=run)  # its sums reconcile


def test_blocks_that_are_cut_otherwise_are_read_off_by_address() -> None:
    cuts = Pieces([0, 1], lambda block: [(BASE + 8 * PAGE_BYTES * block, 8 * PAGE_BYTES)])
    eight = 8 * PAGE_BYTES
    spans = cuts.tell([[0, eight], [eight, 0]], [eight, eight])  # the first half slow, the second fast
    quarters = Pieces(range(4), lambda block: [(BASE + 4 * PAGE_BYTES * block, 4 * PAGE_BYTES)])
    four = 4 * PAGE_BYTES
    assert quarters.read(spans, 2) == {0: [0, four], 1: [0, four], 2: [four, 0], 3: [four, 0]}
    whole = Pieces([0], lambda _: [(BASE, 16 * PAGE_BYTES)])
    assert whole.read(spans, 2) == {0: [eight, eight]}
    beyond = Pieces([0], lambda _: [(BASE + 64 * PAGE_BYTES, PAGE_BYTES)])
    assert beyond.read(spans, 2) == {0: [PAGE_BYTES, 0]}  # nobody told of it: it was born in fast memory


def test_pages_that_were_replaced_are_in_fast_memory_but_for_those_of_emulated_tiers() -> None:
    size = 8 * PAGE_BYTES
    cuts = Pieces([0, 1, 2], lambda block: [(BASE + size * block, size)])
    spans = cuts.tell([[size, 0, 0], [0, size, 0], [0, 0, size]], [size] * 3)
    given = Handover(began_ns=1, spans=spans, births_away=True).born_again([0, 1])
    assert cuts.read(given.spans, 3) == {0: [size, 0, 0], 1: [size, 0, 0], 2: [0, 0, size]}
    assert (given.began_ns, given.births_away, given.look_soon) == (1, False, True)
    assert cuts.read(spans, 3)[1] == [0, size, 0]  # another's, as it was


@given(st.data())
def test_reading_off_agrees_with_counting_pages(data: st.DataObject) -> None:
    """Against a slow oracle: the tier of each page, written down."""

    def cut() -> list[tuple[int, int]]:
        ends = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=12)))
        return list(zip([0, *ends], [*ends, 61], strict=True))

    ours, theirs = cut(), cut()
    tiers = data.draw(st.lists(st.integers(0, 3), min_size=len(ours), max_size=len(ours)))
    pages = np.concatenate([[tier] * (stop - start) for (start, stop), tier in zip(ours, tiers, strict=True)])

    def ranges(cuts):
        return lambda block: [(BASE + cuts[block][0] * PAGE_BYTES, (cuts[block][1] - cuts[block][0]) * PAGE_BYTES)]

    nbytes = [(stop - start) * PAGE_BYTES for start, stop in ours]
    held = [[room if tier == each else 0 for tier, room in zip(tiers, nbytes, strict=True)] for each in range(4)]
    spans = Pieces(range(len(ours)), ranges(ours)).tell(held, nbytes)
    assert Pieces(range(len(theirs)), ranges(theirs)).read(spans, 4) == {
        block: [int((pages[start:stop] == tier).sum()) * PAGE_BYTES for tier in range(4)]
        for block, (start, stop) in enumerate(theirs)
    }


def test_the_plans_of_these_tests_differ() -> None:
    """Negative control: were they the same, nothing would have to move."""
    assert replace(FIRST, slots=OTHER.slots).blocks[:2] != OTHER.blocks[:2]
