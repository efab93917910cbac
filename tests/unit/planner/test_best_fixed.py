"""Which pages are fast for good."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.planner import static_placements
from sentinel.planner.assemble import one_tier, with_page_tiers
from sentinel.planner.static_placements import tiers_by_benefit
from sentinel.simulator import simulate
from tests.builders import act, make_machine, make_profile, param

PAGE = 4096


def test_the_pages_that_save_most_are_fast():
    """One of three pages: that of the tensor that is read in every layer."""
    profile = make_profile(
        [param("once", PAGE, [0]), param("always", PAGE, [0, 1, 2]), param("twice", PAGE, [0, 1])], 3
    )
    machine = make_machine(PAGE)
    assert tiers_by_benefit(one_tier(profile, machine, 0, "x"), profile, machine).tolist() == [1, 0, 1]


def test_a_page_that_two_tensors_share_in_turn_counts_for_both():
    specs = [act("a", PAGE, 0, 1, [0]), act("b", PAGE, 1, 2, [1]), param("p", PAGE, [0])]
    profile, machine = make_profile(specs, 2), make_machine(PAGE)
    plan = one_tier(profile, machine, 0, "x")
    shared = next(slot.offset for slot in plan.slots if slot.name == "a") // PAGE
    assert tiers_by_benefit(plan, profile, machine)[shared] == 0


def test_pages_are_slow_where_their_layer_has_time_left_over():
    """`idle` saves more in fast memory, counted alone, but its layer computes longer than it would take slow."""
    profile = make_profile([param("idle", 2 * PAGE, [0, 2]), param("busy", 2 * PAGE, [1])], 3, flops=[10**9, 1, 10**9])
    machine = make_machine(2 * PAGE, flops_per_s=1e12)
    plan = one_tier(profile, machine, 0, "x")
    assert tiers_by_benefit(plan, profile, machine).tolist() == [1, 1, 0, 0]


def test_a_layers_time_left_over_is_used_up_and_no_further():
    """Layer 0 computes as long as it takes to use 5 of its 20 pages in slow memory and 15 in fast memory."""
    flops = [5 * PAGE * 100 + 15 * PAGE * 10, 1]  # on 1e12 FLOP/s, with 10 and 100 GB/s
    profile = make_profile([param("idle", 20 * PAGE, [0]), param("busy", 20 * PAGE, [1])], 2, flops=flops)
    machine = make_machine(30 * PAGE, flops_per_s=1e12)
    tier = tiers_by_benefit(one_tier(profile, machine, 0, "x"), profile, machine)
    assert (tier[:20].sum(), tier[20:].sum()) == (5, 5)


def test_a_last_page_of_a_few_bytes_is_slow_rather_than_a_full_one():
    profile = make_profile([param("p", 16 * PAGE + 1, [0])], 1, flops=[0])
    machine = make_machine(PAGE, flops_per_s=1e12)
    assert tiers_by_benefit(one_tier(profile, machine, 0, "x"), profile, machine).tolist() == [0] + [1] * 16


def test_a_step_of_very_many_layers_is_placed_in_fewer_runs(monkeypatch):
    """Two runs of eight pages: the first one has pages of both tensors."""
    monkeypatch.setattr(static_placements, "_CELLS", 4)
    profile = make_profile([param("once", 6 * PAGE, [0]), param("twice", 10 * PAGE, [0, 1])], 2)
    machine = make_machine(8 * PAGE)
    assert tiers_by_benefit(one_tier(profile, machine, 0, "x"), profile, machine).tolist() == [1] * 8 + [0] * 8


def test_what_a_page_takes_is_a_few_bytes():
    """64 GiB: sixteen million pages."""
    profile = make_profile([param("p", 64 << 30, [0])], 1)
    machine = make_machine(16 << 30)
    plan = one_tier(profile, machine, 0, "x")
    tracemalloc.start()
    try:
        tier = tiers_by_benefit(plan, profile, machine)
        placed = with_page_tiers(plan, profile, tier, "x")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * len(tier)
    assert [(block.nbytes >> 30, block.tier) for block in placed.blocks] == [(16, 0), (48, 1)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 2), min_size=1, max_size=4),
    uses=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=4, max_size=4),
    flops=st.lists(st.sampled_from([1, 400_000, 900_000, 4_000_000]), min_size=3, max_size=3),
    fast=st.integers(0, 6),
)
def test_no_other_choice_of_pages_is_faster_by_more_than_a_page(sizes, uses, flops, fast):
    """All choices are tried. The program splits pages, and whole ones may cost a little more: at most one page each."""
    specs = [param(f"p{i}", size * PAGE, sorted(used)) for i, (size, used) in enumerate(zip(sizes, uses, strict=False))]
    profile = make_profile(specs, 3, flops=flops)
    machine = make_machine(fast * PAGE, flops_per_s=1e12)
    plan, pages = one_tier(profile, machine, 0, "x"), sum(sizes)

    def step_ns(tier):
        return simulate(with_page_tiers(plan, profile, tier, "x"), profile, machine).step_ns

    found = tiers_by_benefit(plan, profile, machine)
    assert (found == 0).sum() == min(fast, pages)
    least = []
    for chosen in combinations(range(pages), min(fast, pages)):
        tier = np.ones(pages, np.int64)
        tier[list(chosen)] = 0
        least.append(step_ns(tier))
    page_slow_ns = step_ns(np.ones(pages, np.int64)) / pages
    assert step_ns(found) <= min(least) + 3 * page_slow_ns
