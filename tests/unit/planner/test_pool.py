"""The reserved pool: who shares addresses, which layers they hold, and who is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.traces.synthetic import synthetic
from sentinel.planner import pool
from sentinel.planner.pool import fixed_block, held_bytes, layered_blocks, make_pool, pool_ns, reserve
from sentinel.planner.workload import make_workload, peak_bytes, short_peaks
from tests.builders import act, make_machine, make_profile

PAGE = 4096
LARGE = 1 << 16


def test_what_is_never_alive_together_shares_addresses():
    profile = make_profile([act("a", PAGE, 0, 1), act("b", PAGE, 2, 3)], 4)
    pool = make_pool(profile, np.array([0, 1]))
    assert (pool.extent, pool.offsets.tolist()) == (PAGE, [0, 0])


def test_a_pool_holds_its_pages_only_in_the_layers_in_which_somebody_lives():
    profile = make_profile([act("a", PAGE, 0, 1), act("b", PAGE, 2, 3)], 4)
    pool = make_pool(profile, np.array([0, 1]))
    blocks = layered_blocks(pool, profile, base=8 * PAGE, tier=0, name="pool")
    assert [(b.offset, b.start, b.stop, b.tensors) for b in blocks] == [(8 * PAGE, 0, 1, (0,)), (8 * PAGE, 2, 3, (1,))]
    assert held_bytes(pool, profile).tolist() == [PAGE, 0, PAGE, 0]
    fixed = fixed_block(pool, 0, 4, 1, "slow pool")
    assert (fixed.nbytes, fixed.start, fixed.stop, fixed.fixed) == (PAGE, 0, 4, True)


def test_what_lies_above_the_cap_is_in_slow_memory_for_good():
    profile = make_profile([act("a", PAGE, 0, 1), act("b", PAGE, 0, 1)], 2)
    pool = make_pool(profile, np.array([0, 1]), cap=PAGE)
    assert sorted(pool.slow_share(profile).tolist()) == [0, 1]
    *inside, rest = layered_blocks(pool, profile, 0, 0, "pool", rest_tier=2)
    assert [(b.nbytes, b.tier) for b in inside] == [(PAGE, 0)]
    assert (rest.offset, rest.nbytes, rest.tier, rest.fixed) == (PAGE, PAGE, 2, True)
    assert held_bytes(pool, profile).tolist() == [PAGE, 0]


def test_without_room_for_all_the_least_useful_a_byte_goes():
    profile = make_profile([act("written", LARGE, 0, 1), act("read too", LARGE, 0, 1, [0])], 2)
    work = make_workload(profile, make_machine(), 0)
    short = reserve(work, LARGE)
    assert short.tier.tolist() == [1, 0]
    assert short.held_bytes.tolist() == [LARGE, 0]
    assert pool_ns(work, short).tolist() == pytest.approx([work.short_ns[0], 0])


def test_what_is_to_be_slow_leaves_its_room_to_others():
    profile = make_profile([act("written", LARGE, 0, 1), act("read too", LARGE, 0, 1, [0])], 2)
    short = reserve(make_workload(profile, make_machine(), 0), LARGE, slow=np.array([False, True]))
    assert short.tier.tolist() == [0, 1]


def test_units_are_pooled_beside_short_lived_tensors_unless_most_of_them_would_not_fit():
    profile = make_profile([act("long", LARGE, 0, 2, [1]), act("short", PAGE, 0, 1)], 4)
    work = make_workload(profile, make_machine(), 0)
    assert reserve(work, 2 * LARGE, others=np.array([0])).pooled.tolist() == [0]
    assert reserve(work, 2 * LARGE, others=np.array([0])).held_bytes.tolist() == [LARGE + PAGE, LARGE, 0, 0]
    assert reserve(work, PAGE, others=np.array([0])).pooled.tolist() == []


def test_what_the_last_round_drops_is_not_in_the_pool(monkeypatch):
    monkeypatch.setattr(pool, "_ROUNDS", 1)
    profile = make_profile([act("long", LARGE, 0, 2, [1]), act("short", PAGE, 0, 1)], 4)
    short = reserve(make_workload(profile, make_machine(), 0), PAGE, others=np.array([0]))
    assert short.pooled.tolist() == []
    assert short.pool.tensors.tolist() == [1]
    assert short.held_bytes.tolist() == [PAGE, 0, 0, 0]


def test_full_layers_are_made_to_fit_without_another_sum_over_all_events(monkeypatch):
    profile = synthetic(2000, 40)
    work = make_workload(profile, make_machine(), 0)
    budget = int(np.median(work.short_bytes[work.short_bytes > 0])) // 2
    asked = []

    def counted(*given):
        asked.append(given)
        return short_peaks(*given)

    monkeypatch.setattr(pool, "short_peaks", counted)
    full = work.short_bytes > budget
    assert full.sum() > 5
    tier = reserve(work, budget).tier
    assert not asked
    fast = work.units.short[tier == 0]
    assert (short_peaks(profile, fast) <= budget).all()
    layer = profile.tensors["start"][work.units.short]
    for k in np.flatnonzero(full).tolist():  # none is slow that has room: the dearest of those goes back
        slow = np.flatnonzero((layer == k) & (tier > 0))
        density = work.short_ns[slow] / profile.tensors["nbytes"][work.units.short[slow]]
        last = work.units.short[slow[np.argsort(density, kind="stable")[-1]]]
        assert short_peaks(profile, np.append(fast, last))[k] > budget


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_of_a_few_rows_is_that_of_their_layer(seed):
    random = np.random.default_rng(seed)
    specs = [
        act(f"t{i}", int(random.integers(1, 5 * PAGE)), int(random.integers(3)), 0)
        for i in range(int(random.integers(1, 9)))
    ]
    specs = [replace(spec, stop=spec.start + 1, dies_early=bool(random.integers(2))) for spec in specs]
    profile = make_profile(specs, 3)
    for layer in range(3):
        rows = np.flatnonzero(profile.tensors["start"] == layer)
        assert peak_bytes(profile, rows) == short_peaks(profile, rows)[layer]
