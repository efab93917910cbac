"""Tensors cut at their page ranges and put together again: small cases computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel import planner
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.extents import RANGE_DTYPE, cut_extents, extents_as_tensors, merge_extents, plan_of_tensors
from sentinel.core.laws import check
from sentinel.core.plan import Segment
from sentinel.core.profile import EXTENT_DTYPE
from sentinel.core.units import PAGE_BYTES
from sentinel.core.uses import block_uses
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param

HOT, PAGES = 32, 512
"""The table has 512 pages, the last one of 100 bytes. Each step touches the first 32, and 48 of the others."""
TABLE_BYTES = (PAGES - 1) * PAGE_BYTES + 100


RANGES = [(1, 1, 0, HOT, 32, 0), (1, 1, HOT, PAGES, 48, 0), (1, 3, 0, HOT, 30, 30), (1, 3, HOT, PAGES, 60, 60)]


def whole_profile():
    """A table read in layer 1 and written in layer 3, between two dense tensors; an activation. No tensor is cut."""
    specs = [
        param("first", MIB, [0]),
        param("table", TABLE_BYTES, [1]),
        param("last", MIB, [2]),
        act("x", MIB, 1, 3, [2]),
    ]
    found = make_profile(specs, 4)
    rows = found.accesses.copy()
    mine = rows["extent"] == 1
    rows["touched_bytes"][mine] = rows["read_bytes"][mine] = 80 * PAGE_BYTES
    rows["pages_touched"][mine], rows["pages_written"][mine] = 80, 0
    written = rows[mine].copy()
    written["layer"], written["read_bytes"], written["written_bytes"] = 3, 0, 90 * PAGE_BYTES
    written["reads"], written["writes"], written["pages_written"] = 0, 1, 90
    written["pages_touched"], written["touched_bytes"] = 90, 90 * PAGE_BYTES
    return replace(found, accesses=np.insert(rows, np.flatnonzero(mine)[0] + 1, written))


def table_profile(*, ranged=True):
    """`whole_profile()`, the table of which is cut into its hot and its cold pages."""
    return cut_extents(whole_profile(), np.array(RANGES if ranged else [], RANGE_DTYPE))


def by_name(profile, column):
    """(name, layer) -> a column of the accesses, each extent being a tensor."""
    profile = extents_as_tensors(profile)
    return {(profile.names[row["extent"]], int(row["layer"])): int(row[column]) for row in profile.accesses}


def test_a_profile_without_ranges_is_as_it_was():
    profile = table_profile(ranged=False)
    assert not profile.is_cut
    assert profile.extents.tolist() == [(0, 0, MIB), (1, 0, TABLE_BYTES), (2, 0, MIB), (3, 0, MIB)]
    assert extents_as_tensors(profile) is profile
    assert merge_extents(profile) is profile
    plan = planner.plan(profile, make_machine(2 * MIB), "first-touch")
    assert plan_of_tensors(plan, profile) is plan


def test_extents_are_whole_pages_and_hold_all_bytes():
    profile = table_profile()
    assert profile.is_cut
    head = HOT * PAGE_BYTES
    assert profile.extents.tolist() == [
        (0, 0, MIB),
        (1, 0, head),
        (1, head, TABLE_BYTES - head),
        (2, 0, MIB),
        (3, 0, MIB),
    ]
    assert profile.first_extent.tolist() == [0, 1, 3, 4, 5]
    found = extents_as_tensors(profile)
    assert found.names == ("first", "table[0:32]", "table[32:512]", "last", "x")
    assert found.tensors["nbytes"].tolist() == profile.extents["nbytes"].tolist()
    assert not found.is_cut


def test_accesses_go_where_the_pages_were_touched():
    found = table_profile()
    touched = by_name(found, "touched_bytes")
    assert (touched["table[0:32]", 1], touched["table[32:512]", 1]) == (32 * PAGE_BYTES, 48 * PAGE_BYTES)
    assert by_name(found, "written_bytes")["table[32:512]", 3] == 60 * PAGE_BYTES
    assert by_name(found, "pages_written")["table[0:32]", 3] == 30
    assert by_name(found, "pages_written")["first", 0] == -1
    assert by_name(found, "reads")["table[0:32]", 1] == 1


def test_extents_put_together_are_the_tensor_again():
    whole, again = whole_profile(), merge_extents(table_profile())
    assert again.names == whole.names
    assert np.array_equal(again.extents, whole.extents)
    assert np.array_equal(again.accesses, whole.accesses)


def test_what_of_one_extent_is_unknown_is_unknown_of_the_tensor():
    rows = np.array([(1, 1, 0, HOT, 32, -1), (1, 1, HOT, PAGES, 48, 7)], RANGE_DTYPE)
    found = cut_extents(whole_profile(), rows)
    assert by_name(found, "pages_written")["table[32:512]", 1] == 7
    assert by_name(merge_extents(found), "pages_written")["table", 1] == -1


def test_a_layer_without_ranges_is_spread_by_bytes():
    rows = np.array([row for row in RANGES if row[1] == 1], RANGE_DTYPE)
    touched = by_name(cut_extents(whole_profile(), rows), "touched_bytes")
    share = HOT * PAGE_BYTES / TABLE_BYTES
    assert touched["table[0:32]", 3] == round(90 * PAGE_BYTES * share)
    assert touched["table[0:32]", 3] + touched["table[32:512]", 3] == 90 * PAGE_BYTES


def test_an_extent_that_no_layer_touches_has_no_access():
    rows = np.array([row for row in RANGES if row[2] == 0], RANGE_DTYPE)
    found = cut_extents(whole_profile(), rows)
    assert ("table[32:512]", 1) not in by_name(found, "reads")
    assert by_name(found, "touched_bytes")["table[0:32]", 1] == 80 * PAGE_BYTES


@pytest.mark.parametrize("policy", sorted(set(planner.POLICIES) - {"all-fast"}))
def test_every_policy_plans_ranges_and_keeps_the_laws(policy):
    profile, machine = table_profile(), make_machine(2 * MIB, slow_bw=GB, promote=10**8, demote=10**8)
    plan = planner.plan(profile, machine, policy)
    check(plan, profile, machine)
    slot = next(slot for slot in plan.slots if slot.name == "table")
    assert (slot.tensor, slot.nbytes) == (1, TABLE_BYTES)
    assert sorted(slot.name for slot in plan.slots) == ["first", "last", "table", "x"]
    held = sum(block.nbytes for block in plan.blocks if block.tensors == (1,))
    assert held == PAGES * PAGE_BYTES
    told = plan.details["page_ranges"]
    assert plan.predicted_step_ns == told[told["chosen"]]["predicted_step_ns"]
    assert plan.predicted_step_ns == min(told[name]["predicted_step_ns"] for name in ("ranged", "whole"))
    assert simulate(plan, profile, machine).step_ns == plan.predicted_step_ns


def test_the_hot_range_is_fast_and_the_cold_one_slow():
    """Beside a dense tensor there is room for the table's hot 128 KiB, not for the table."""
    profile, machine = table_profile(), make_machine(MIB + 200_000, slow_bw=GB, promote=10**6, demote=10**6)
    ranged = planner.plan(profile, machine)
    whole = planner.plan(profile, machine, whole_tensors=True)
    tiers = {block.name: block.tier for block in ranged.blocks if block.tensors == (1,)}
    assert tiers == {"table[0:32]": 0, "table[32:512]": 1}
    assert {block.tensors for block in whole.blocks if 1 in block.tensors} == {(1,)}
    assert ranged.capacity_bytes == whole.capacity_bytes
    served = [simulate(plan, profile, machine).layers["served_fast_bytes"].sum() for plan in (ranged, whole)]
    assert served[0] > served[1]
    assert ranged.details["page_ranges"]["chosen"] == "ranged"
    assert "page_ranges" not in whole.details


def test_uses_of_a_block_are_those_of_its_pages():
    profile, machine = table_profile(), make_machine(MIB + 200_000, slow_bw=GB, promote=10**6, demote=10**6)
    plan = planner.plan(profile, machine)
    uses = block_uses(plan, profile)
    hot = next(i for i, block in enumerate(plan.blocks) if block.name == "table[0:32]")
    mine = uses[uses["block"] == hot]
    assert mine[["layer", "touched_bytes", "written_bytes"]].tolist() == [
        (1, 32 * PAGE_BYTES, 0),
        (3, 30 * PAGE_BYTES, 30 * PAGE_BYTES),
    ]
    assert uses["touched_bytes"].sum() == profile.accesses["touched_bytes"].sum()


def test_a_plan_that_knows_nothing_of_ranges_is_served_by_what_its_pages_hold():
    """Halves of the table, the first one fast: with ranges it serves nearly all, without half."""
    profile, machine = table_profile(), make_machine(8 * MIB, slow_bw=GB)
    plan = planner.plan(profile, machine, "all-fast")
    index = next(i for i, block in enumerate(plan.blocks) if block.tensors == (1,))
    block = plan.blocks[index]
    half = block.nbytes // 2
    cut = (
        replace(block, nbytes=half, name="low"),
        replace(block, offset=block.offset + half, nbytes=half, name="high", tier=1),
    )
    blocks = (*plan.blocks[:index], *cut, *plan.blocks[index + 1 :])
    segments = tuple(Segment(b.offset, b.nbytes, b.tier) for b in blocks)
    plan = replace(plan, blocks=blocks, segments=segments)
    for ranged, served in ((True, 32 + 48 * (256 - 32) / (512 - 32)), (False, 80 * 256 / 512)):
        run = simulate(plan, table_profile(ranged=ranged), machine)
        other = MIB  # x is written in layer 1
        found = (run.layers["served_fast_bytes"][1] - other) / PAGE_BYTES
        assert found == pytest.approx(served, rel=3e-3)  # the last page has 100 bytes


def test_all_in_fast_memory_has_no_ranges_and_no_moves():
    plan = planner.plan(table_profile(), make_machine(64 * MIB))
    assert not plan.migrations
    assert "page_ranges" not in plan.details
    assert [block.tensors for block in plan.blocks if 1 in block.tensors] == [(1,)]


def test_ranges_that_cannot_show_are_not_planned_apart():
    """Of 6.5 MiB that are touched, those of the table are 4 KiB from where even use would have them."""
    profile = whole_profile()
    rows = profile.accesses.copy()
    rows["touched_bytes"][rows["extent"] == 1] = 16 * PAGE_BYTES
    profile = replace(profile, accesses=rows)
    ranges = np.array([(1, 1, 0, HOT, 1, 0), (1, 1, HOT, PAGES, 15, 0)], RANGE_DTYPE)
    machine = make_machine(2 * MIB, slow_bw=GB)
    plan = planner.plan(cut_extents(profile, ranges), machine)
    assert "page_ranges" not in plan.details
    ranges["pages_touched"] = 8, 8
    plan = planner.plan(cut_extents(profile, ranges), machine)
    assert "page_ranges" in plan.details


def test_the_bound_knows_of_ranges():
    machine = make_machine(MIB, slow_bw=GB, promote=10**6, demote=10**6)
    plan = planner.plan(table_profile(), machine)
    assert planner.bound(table_profile(), machine).step_ns <= plan.predicted_step_ns
    assert planner.bound(table_profile(), machine).step_ns < planner.bound(table_profile(ranged=False), machine).step_ns


def test_extents_that_do_not_follow_each_other_are_refused():
    profile = table_profile()
    plan = planner.plan(extents_as_tensors(profile), make_machine(2 * MIB), "first-touch")
    assert plan_of_tensors(plan, profile).slots[1].nbytes == TABLE_BYTES
    moved = tuple(replace(s, offset=s.offset + PAGE_BYTES) if s.name == "table[32:512]" else s for s in plan.slots)
    with pytest.raises(PlanError, match="table do not follow"):
        plan_of_tensors(replace(plan, slots=moved), profile)


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([(3, 1, 0, 9, 1, 0)], "does not live across"),
        ([(1, 1, 0, 513, 1, 0)], "outside its tensor"),
        ([(1, 1, 0, 9, 10, 0)], "more are touched"),
        ([(1, 1, 0, 9, 0, 0)], "no pages"),
        ([(1, 1, 0, 9, 5, 6)], "written than touched"),
        ([(1, 1, 0, 9, 5, 5), (1, 3, 8, 12, 1, 1)], "overlap"),
        ([(1, 3, 0, 9, 5, 5), (1, 1, 0, 9, 1, 1)], "not sorted"),
        ([(1, 3, 0, 9, 5, 5), (1, 3, 0, 9, 1, 1)], "twice"),
        ([(9, 1, 0, 9, 5, 5)], "not there"),
    ],
)
def test_ranges_that_cannot_be_are_refused(rows, rule):
    with pytest.raises(UsageError, match=rule):
        cut_extents(whole_profile(), np.array(rows, RANGE_DTYPE))


FIRST, LAST, X = (0, 0, MIB), (2, 0, MIB), (3, 0, MIB)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ([], "has no extents"),
        ([(1, 0, 4096)], "do not cover"),
        ([(1, 4096, TABLE_BYTES - 4096)], "do not cover"),
        ([(1, 0, TABLE_BYTES + 4096)], "do not cover"),
        ([(1, 0, 4096), (1, 8192, TABLE_BYTES - 8192)], "do not cover"),
        ([(1, 0, 8192), (1, 4096, TABLE_BYTES - 4096)], "do not cover"),
        ([(1, 4096, TABLE_BYTES - 4096), (1, 0, 4096)], "do not cover"),
        ([(1, 0, 100), (1, 100, TABLE_BYTES - 100)], "whole pages"),
        ([(1, 0, 0), (1, 0, TABLE_BYTES)], "whole pages"),
        ([(1, 0, 1 << 62), (1, 1 << 62, 1 << 62), (1, -(1 << 63), (1 << 62) + TABLE_BYTES)], "whole pages"),
        ([(7, 0, TABLE_BYTES)], "has no extents"),
    ],
)
def test_extents_that_cannot_be_are_refused(table, rule):
    with pytest.raises(UsageError, match=rule):
        replace(whole_profile(), extents=np.array([FIRST, *table, LAST, X], EXTENT_DTYPE))


@pytest.mark.parametrize("cut", [2, 3])
def test_what_is_not_managed_or_does_not_live_across_steps_is_whole(cut):
    profile = make_profile([param("a", MIB, [0]), param("b", MIB, [1]), param("c", MIB, [2], managed=False), X_ACT], 4)
    extents = [(i, 0, MIB) for i in range(4) if i != cut]
    pieces = [(cut, 0, 4096), (cut, 4096, MIB - 4096)]
    with pytest.raises(UsageError, match="several extents"):
        replace(profile, extents=np.array(sorted([*extents, *pieces]), EXTENT_DTYPE))


X_ACT = act("x", MIB, 1, 3, [2])
