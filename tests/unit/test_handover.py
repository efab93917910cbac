"""One engine gives way to another: bytes are where they were, and go where the next plan wants them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import UsageError
from sentinel.core.run import REASONS
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.engine import Engine
from sentinel.migration.handover import Pieces
from sentinel.reports import build_report
from tests.builders import MIB, act, make_profile, param
from tests.three_tiers import three_tiers
from tests.unit.engine_builders import applied, emulated_machine, transient_plan

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
    second = Engine(OTHER, LONG, emulated_machine(BUDGET), ranges=where, warn=print)
    with one as first:
        first.step(1)
        time.sleep(0.002)  # into layer 0, which is the other plan's
        second.take_over(first.engine.hand_over(), in_step=True)
        for layer in (1, 2, 3, 0):
            second.begin_layer(layer)
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


@pytest.mark.needs("native")
def test_plans_of_three_tiers_do_not_give_way_and_say_so() -> None:
    machine = three_tiers(BUDGET)
    machine = replace(machine, tiers=(machine.fast, *(replace(t, kind="emulated") for t in machine.tiers[1:])))
    plan = replace(FIRST, tier_names=("fast", "middle", "slow"), capacity_bytes=(BUDGET, 1 << 30, 1 << 40))
    one, _ = engines()
    with applied(plan, SHORT, machine, ranges=where) as third, one as first:
        with pytest.raises(UsageError, match=r"a plan of 3 tiers cannot give way to another.*two tiers"):
            third.engine.hand_over()
        with pytest.raises(UsageError, match="a plan of 3 tiers"):
            third.engine.take_over(first.engine.hand_over(), in_step=True)
        third.step(2)  # nothing has changed: it goes on
        run = third.engine.end_run()
    assert run.steps["in_step"].tolist() == [True, True]
    assert (run.layers["fast_bytes"] == [5 * MIB, 6 * MIB, 5 * MIB, 5 * MIB] * 2).all()


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
    spans = cuts.tell([1, 0], [0, 8 * PAGE_BYTES], [8 * PAGE_BYTES] * 2)  # the first half slow, the second fast
    quarters = Pieces(range(4), lambda block: [(BASE + 4 * PAGE_BYTES * block, 4 * PAGE_BYTES)])
    assert quarters.read(spans) == {0: (1, 0), 1: (1, 0), 2: (0, 4 * PAGE_BYTES), 3: (0, 4 * PAGE_BYTES)}
    whole = Pieces([0], lambda _: [(BASE, 16 * PAGE_BYTES)])
    assert whole.read(spans) == {0: (1, 8 * PAGE_BYTES)}
    beyond = Pieces([0], lambda _: [(BASE + 64 * PAGE_BYTES, PAGE_BYTES)])
    assert beyond.read(spans)[0][1] == PAGE_BYTES  # nobody told of it: it was born in fast memory


@given(st.data())
def test_reading_off_agrees_with_counting_pages(data: st.DataObject) -> None:
    """Against a slow oracle: the tier of each page, written down."""

    def cut() -> list[tuple[int, int]]:
        ends = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=12)))
        return list(zip([0, *ends], [*ends, 61], strict=True))

    ours, theirs = cut(), cut()
    tiers = data.draw(st.lists(st.integers(0, 1), min_size=len(ours), max_size=len(ours)))
    pages = np.concatenate([[tier] * (stop - start) for (start, stop), tier in zip(ours, tiers, strict=True)])

    def ranges(cuts):
        return lambda block: [(BASE + cuts[block][0] * PAGE_BYTES, (cuts[block][1] - cuts[block][0]) * PAGE_BYTES)]

    nbytes = [(stop - start) * PAGE_BYTES for start, stop in ours]
    fast = [0 if tier else room for tier, room in zip(tiers, nbytes, strict=True)]
    spans = Pieces(range(len(ours)), ranges(ours)).tell(tiers, fast, nbytes)
    read = Pieces(range(len(theirs)), ranges(theirs)).read(spans)
    assert {block: found for block, (_, found) in read.items()} == {
        block: int((pages[start:stop] == 0).sum()) * PAGE_BYTES for block, (start, stop) in enumerate(theirs)
    }


def test_the_plans_of_these_tests_differ() -> None:
    """Negative control: were they the same, nothing would have to move."""
    assert replace(FIRST, slots=OTHER.slots).blocks[:2] != OTHER.blocks[:2]
