"""Plans whose answer is known without a planner."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.ladder import RUNGS, ladder, shared_pages
from benchmarks.traces.synthetic import synthetic
from sentinel.core.errors import Infeasible, PlanError, UsageError
from sentinel.core.pins import Pins
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES, format_bytes
from sentinel.planner import POLICIES, bound, footprint_bytes, plan, sweep
from sentinel.planner.packing import live_peak_bytes, pack, pack_pages, pack_slots
from sentinel.planner.paper import Sentinel2021
from sentinel.planner.relaxation import instants
from sentinel.simulator import simulate
from tests.builders import GB, MIB, TensorSpec, act, make_machine, make_profile, param, persistent_plan

MAY_CHOOSE = ("sentinel", "sentinel-2021", "next-use", "capuchin", "lru", "autotm", "first-touch")


def network(n: int = 8, mib: int = 4):
    """Forward, backward and optimizer of n layers: weights, one moment, activations, gradients, workspaces."""
    size = mib * MIB
    specs = []
    for i in range(n):
        back, update = 2 * n - 1 - i, 2 * n + i
        weight = {i: (size, 0), back: (size, 0), update: (size, size)}
        specs += [
            TensorSpec(f"w{i}", size, uses=weight, persistent=True, role="param"),
            TensorSpec(f"m{i}", size, uses={update: (size, size)}, persistent=True, role="optimizer"),
            act(f"a{i}", 2 * size, i, back + 1, [back]),
            TensorSpec(f"g{i}", size, back, update + 1, {back: (0, size), update: (size, 0)}, role="grad"),
            *(act(f"t{i}.{k}", size // 2, k, k + 1, [k]) for k in (i, back, update)),
        ]
    return make_profile(specs, 3 * n, layer_ns=3_000_000)


def fast_only_ns(profile):
    return int(profile.layer_ns.sum())


@pytest.mark.parametrize("policy", MAY_CHOOSE)
def test_a_step_that_fits_stays_in_fast_memory_and_nothing_moves(policy):
    profile = network()
    made = plan(profile, make_machine(footprint_bytes(profile)), policy)
    assert made.migrations == ()
    assert {block.tier for block in made.blocks} == {0}
    assert made.predicted_step_ns == fast_only_ns(profile)
    assert made.fast_peak_bytes == made.footprint_bytes == footprint_bytes(profile)


def test_all_fast_says_what_it_would_need():
    profile = network()
    with pytest.raises(Infeasible) as caught:
        plan(profile, make_machine(footprint_bytes(profile) - 4096), "all-fast")
    assert caught.value.needed_bytes == footprint_bytes(profile)
    assert re.search(
        r"needs (\S+ \wiB) of fast memory, 4.00 KiB more than the \S+ \wiB that there are: ", str(caught.value)
    )


@pytest.mark.parametrize("policy", ["sentinel", "sentinel-2021", "lru", "static", "all-slow"])
def test_tiers_that_are_too_small_together_are_told(policy):
    """Not as a fault of the plan, which nothing could mend."""
    profile = network()
    needed = footprint_bytes(profile)
    machine = make_machine(needed // 4, slow_bytes=needed // 4)
    missing, there = (format_bytes(nbytes) for nbytes in (needed - 2 * (needed // 4), 2 * (needed // 4)))
    told = f"needs {format_bytes(needed)}, {missing} more than the {there} that all tiers have; give more fast memory"
    with pytest.raises(Infeasible, match=told) as caught:
        plan(profile, machine, policy)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (needed, 2 * (needed // 4))
    with pytest.raises(Infeasible, match=told):
        plan(profile, machine, policy, pins=Pins(smallest_bytes=4096))


def test_all_slow_uses_no_fast_memory_and_pays_for_every_access():
    profile = network()
    machine = make_machine(64 * MIB)
    made = plan(profile, machine, "all-slow")
    assert made.fast_peak_bytes == 0
    extra = (profile.accesses["read_bytes"] + profile.accesses["written_bytes"]).sum() * (1 / 10 - 1 / 100)
    assert made.predicted_step_ns == pytest.approx(fast_only_ns(profile) + extra, abs=len(profile.layers))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4, 0.7])
def test_no_rival_beats_sentinel_and_none_beats_the_bound(share):
    profile = network()
    machine = make_machine(int(share * footprint_bytes(profile)), promote=5 * GB, demote=5 * GB)
    least = bound(profile, machine)
    times = {name: plan(profile, machine, name).predicted_step_ns or 0 for name in POLICIES if name != "all-fast"}
    assert least.loose == ""
    assert all(time >= least.step_ns for time in times.values())
    assert times["sentinel"] <= min(times.values()) * 1.005
    assert times["sentinel"] < times["all-slow"]  # the control: something was gained


def test_links_too_slow_to_be_of_use_are_not_used():
    profile = network()
    made = plan(profile, make_machine(20 * MIB, promote=10**6, demote=10**6))
    assert made.migrations == ()


def test_the_least_useful_bytes_are_the_ones_left_in_slow_memory():
    hot, cold = param("hot", 4 * MIB, range(6)), param("cold", 4 * MIB, [2])
    made = plan(make_profile([cold, hot], 6), make_machine(4 * MIB, promote=10**6, demote=10**6))
    assert {block.tensors: block.tier for block in made.blocks} == {(0,): 1, (1,): 0}


def test_a_tensor_larger_than_fast_memory_is_placed_in_part():
    profile = make_profile([param("a", 8 * MIB, [0, 1])], 2)
    made = plan(profile, make_machine(3 * MIB))
    assert made.fast_peak_bytes == 3 * MIB
    assert sorted((block.nbytes, block.tier) for block in made.blocks) == [(3 * MIB, 0), (5 * MIB, 1)]


def test_dead_data_is_never_copied():
    profile = network()
    made = plan(profile, make_machine(int(0.2 * footprint_bytes(profile)), promote=5 * GB, demote=5 * GB))
    last = dict(zip(profile.accesses["extent"].tolist(), profile.accesses["layer"].tolist(), strict=True))
    for move in made.migrations:
        block = made.blocks[move.block]
        if not block.persistent:
            assert move.start < max(last[t] for t in block.tensors)


def test_a_budget_below_the_papers_bound_is_planned_and_the_shortfall_told():
    profile = network()
    made = plan(profile, make_machine(MIB))
    assert made.fast_needed_bytes == 2 * MIB + 8 * MIB  # one workspace, one activation
    assert made.details["shortfall_bytes"] == 9 * MIB
    assert 0 < made.fast_peak_bytes <= MIB


def test_unmanaged_tensors_have_no_slot_and_no_block():
    profile = make_profile([param("ours", MIB, [0]), param("theirs", MIB, [0], managed=False)], 2)
    made = plan(profile, make_machine(MIB))
    assert [slot.name for slot in made.slots] == ["ours"]
    assert footprint_bytes(profile) == MIB


def test_details_are_json_and_tell_what_was_tried():
    profile = network()
    made = plan(profile, make_machine(int(0.2 * footprint_bytes(profile))))
    told = json.loads(json.dumps(made.details))
    assert {"mil", "cases", "intervals", "alternatives", "rs_bytes", "shortfall_bytes"} <= set(told)
    assert set(told["cases"]) == {"1", "2", "3"}
    assert told["alternatives"][told["chosen"]] == made.predicted_step_ns == min(told["alternatives"].values())
    assert told["rs_bytes"] == 2 * MIB


def test_the_published_interval_has_an_optimum_inside():
    profile = network(n=12)
    machine = make_machine(int(0.3 * footprint_bytes(profile)), promote=5 * GB, demote=5 * GB)
    times = {mil: Sentinel2021(mil).plan(profile, machine).predicted_step_ns or 0 for mil in (1, 2, 3, 4, 6, 12, 36)}
    assert min(times.values()) < times[36]
    assert plan(profile, machine, "sentinel-2021").predicted_step_ns == min(times.values())


def test_every_pool_slot_is_aligned_and_large_ones_share_no_page_with_small_ones():
    rng = np.random.default_rng(11)
    nbytes = rng.integers(1, 40_000, 499)
    start = np.sort(rng.integers(0, 499, 499))
    stop = start + rng.integers(1, 60, 499)
    offsets, extent = pack_slots(nbytes, start, stop, 499)
    large = nbytes >= 4096
    assert (offsets[large] % 4096 == 0).all()
    assert (offsets[~large] % 64 == 0).all()
    assert offsets[~large].min() >= (offsets + nbytes)[large].max()
    sizes = -(-nbytes[large] // 4096) * 4096
    assert extent <= 1.02 * live_peak_bytes(sizes, start[large], stop[large], 499) + sum(nbytes[~large]) // 8


def test_tensors_of_one_size_fill_no_more_places_than_are_alive_at_once():
    rng = np.random.default_rng(7)
    start = np.sort(rng.integers(0, 900, 997))
    stop = start + rng.integers(1, 60, 997)
    nbytes = np.full(997, 3 * 4096)
    offsets, extent = pack_slots(nbytes, start, stop, 1000)
    assert extent == live_peak_bytes(nbytes, start, stop, 1000)
    assert len(np.unique(offsets)) * 3 * 4096 == extent


@pytest.mark.parametrize(
    ("mib", "expected"),
    [
        pytest.param([5, 5, 1, 1], [0, 6, 5, 11], id="small ones fill the gaps"),
        pytest.param([3, 3, 3], [0, 4, 8], id="nobody fills them"),
    ],
)
def test_large_tensors_begin_with_a_huge_page(mib, expected):
    alive = np.zeros(len(mib), np.int64)
    offsets = pack_pages(np.array(mib) * MIB, alive, alive + 1, 1)
    assert offsets.tolist() == [at * MIB for at in expected]


def test_nothing_is_aligned_where_that_would_take_more_memory():
    """6 MiB, and then two of 3 in its place: aligned, the second of them would end beyond it."""
    nbytes, start = np.array([6, 3, 3]) * MIB, np.array([0, 1, 1])
    assert pack_pages(nbytes, start, start + 1, 2).tolist() == [0, 0, 3 * MIB]
    assert pack(nbytes, start, start + 1, 2, aligned=True).tolist() == [0, 0, 4 * MIB]


def test_what_migrates_begins_with_a_huge_page_counted_from_where_the_arena_begins():
    big = 33 * MIB + PAGE_BYTES
    specs = [
        param("w", 3 * PAGE_BYTES, [0]),
        *(act(f"a{i}", big + i * PAGE_BYTES, i, 12 - i, [11 - i]) for i in range(6)),
    ]
    profile = make_profile(specs, 12)
    made = plan(profile, make_machine(int(0.4 * footprint_bytes(profile)), promote=10 * GB, demote=10 * GB))
    moving = {made.blocks[m.block] for m in made.migrations if not made.blocks[m.block].persistent}
    first_parts = {block for block in moving if block.offset in {slot.offset for slot in made.slots}}
    assert first_parts
    assert {(block.offset - 3 * PAGE_BYTES) % HUGE_PAGE_BYTES for block in first_parts} == {0}


def test_a_layer_of_many_tensors_takes_memory_by_their_number_not_its_square():
    profile = synthetic(20_000, 2)
    tracemalloc.start()
    found = instants(profile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found >= 0).all()
    assert peak < 50 * MIB  # pairs of them, a byte each, would be 50


def test_a_pool_that_packs_into_more_than_its_peak_is_refused_with_the_bytes_that_do():
    lives = [(4, 0, 3), (4, 1, 3), (8, 2, 6), (7, 3, 4), (8, 4, 7), (4, 5, 8), (6, 6, 10), (8, 7, 10), (6, 8, 10)]
    lives += [(7, 9, 11), (6, 10, 11)]  # pages, birth, death
    profile = make_profile([act(f"a{i}", pages * PAGE_BYTES, 0, 1) for i, (pages, *_) in enumerate(lives)], 1)
    _, profile.tensors["born_event"], profile.tensors["died_event"] = zip(*lives, strict=True)
    barred = make_machine(27 * PAGE_BYTES, addressable=False)  # as much as is ever alive
    with pytest.raises(Infeasible) as refused:
        plan(profile, barred)
    assert refused.value.needed_bytes == 28 * PAGE_BYTES == footprint_bytes(profile)
    assert plan(profile, barred.with_fast_capacity(28 * PAGE_BYTES)).fast_peak_bytes == 28 * PAGE_BYTES


def test_an_unknown_policy_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match="sentinel-2021"):
        plan(network(), make_machine(), "best")


def test_the_integer_program_refuses_what_is_too_large_for_it():
    many = make_profile([param(f"p{i}", MIB, [i % 5]) for i in range(601)], 5)
    with pytest.raises(PlanError, match="at most 600"):
        plan(many, make_machine(MIB), "autotm")


def test_simulating_the_plan_gives_what_the_plan_predicts():
    profile = network()
    machine = make_machine(int(0.2 * footprint_bytes(profile)), promote=5 * GB, demote=5 * GB)
    made = plan(profile, machine)
    run = simulate(made, profile, machine, steps=2)
    assert run.step_ns == made.predicted_step_ns
    assert run.layers["fast_bytes"].max() <= machine.fast.capacity_bytes


def with_small_activations(n: int = 8):
    """`network` in which every layer also leaves 40 KiB in small tensors to its backward, hot and cold ones mixed."""
    specs = []
    for i in range(n):
        back = 2 * n - 1 - i
        for k in range(20):
            specs.append(act(f"s{i}.{k}", 2048, i, back + 1 if k % 2 else i + 2, [back if k % 2 else i + 1]))
    big = [act(f"a{i}", 64 * 1024, i, 2 * n - i, [2 * n - 1 - i]) for i in range(n)]
    return make_profile([*specs, *big], 2 * n, layer_ns=10_000)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_each_rung_of_the_papers_ladder_adds_speed(share):
    profile = network()
    machine = make_machine(int(share * footprint_bytes(profile)), promote=3 * GB, demote=3 * GB)
    times = ladder(profile, machine)
    assert tuple(times) == RUNGS
    assert list(times.values()) == sorted(times.values(), reverse=True)
    assert times["direct"] > times["reservation"] > times["ours"]  # the control: the ladder climbs


def test_co_allocation_is_a_rung_where_small_tensors_share_pages():
    profile = with_small_activations()
    shared = shared_pages(profile)
    small = profile.tensors["nbytes"] < 4096
    assert len(shared.names) == int((~small).sum()) + int(small.sum()) // 2  # two of 2 KiB a page
    assert shared.tensors["nbytes"].sum() == profile.tensors["nbytes"].sum()
    for column in ("read_bytes", "written_bytes", "touched_bytes"):
        assert shared.accesses[column].sum() == profile.accesses[column].sum()
    times = ladder(profile, make_machine(int(0.4 * footprint_bytes(profile)), promote=3 * GB, demote=3 * GB))
    assert times["co-allocation"] < times["reservation"]


def test_a_step_that_fits_has_a_flat_ladder():
    profile = network()
    assert set(ladder(profile, make_machine(footprint_bytes(profile))).values()) == {fast_only_ns(profile)}


def test_a_curve_takes_the_plan_for_less_memory_where_that_is_faster(monkeypatch):
    """A policy that is slower with 20 pages than with 10, and as fast with 30."""
    profile = make_profile([param("a", 4096, [0])], 2)
    step_ns = {10: 700, 20: 900, 30: 700, 40: 600}

    def made(profile, machine, policy, pins):
        pages = machine.fast.capacity_bytes // 4096
        plan = persistent_plan(profile, [0], fast_bytes=machine.fast.capacity_bytes)
        return replace(plan, predicted_step_ns=step_ns[pages], details={"gap": pages / 100})

    subject = sweep.make_subject("p", profile, make_machine())
    monkeypatch.setattr(sweep, "plan", made)
    points = list(sweep.curve(subject, profile, make_machine(), {str(p): p * 4096 for p in (40, 20, 10, 30)}))
    assert [point.fast for point in points] == ["10", "20", "30", "40"]
    assert [point.step_ns for point in points] == [700, 700, 700, 600]
    assert [point.gap for point in points] == [0.1, 0.1, 0.3, 0.4]
