"""The bound against plans that no policy drew: any timelines, with just as much fast memory as they need."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.laws import check
from sentinel.planner import bound, footprint_bytes
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Choice, decide, episodes_of
from sentinel.planner.pool import reserve
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate
from tests.builders import GB, MIB, machines, make_machine, make_profile, param, persistent_plan, profiles

pytestmark = pytest.mark.slow


@settings(max_examples=30, deadline=None)
@given(profile=profiles(), machine=machines(), seed=st.integers(0, 1 << 30))
def test_no_plan_at_random_beats_the_bound_of_the_memory_it_holds(profile, machine, seed):
    rng = np.random.default_rng(seed)
    work = make_workload(profile, machine.with_fast_capacity(1 << 40), footprint_bytes(profile))
    episodes = episodes_of(work, _timelines(work, rng))
    granted = np.flatnonzero(rng.random(len(work.units)) < rng.random())
    slow = rng.random(len(work.units.short)) < rng.random()
    short = reserve(work, 1 << 40, slow)
    decision = decide(work, episodes, np.isin(episodes.unit, granted), short)
    draft = assemble(decision, work.units, profile, machine, policy="random", footprint_bytes=0)
    exact = machine.with_fast_capacity(draft.fast_peak_bytes)
    plan = replace(draft, capacity_bytes=(draft.fast_peak_bytes, *draft.capacity_bytes[1:]))
    check(plan, profile, exact)
    least = bound(profile, exact)
    assert simulate(plan, profile, exact).step_ns >= least.step_ns - profile.n_layers


def _timelines(work, rng):
    """Any tiers, and any windows within the gaps."""
    _, by, has_gap = work.gaps
    after, wide = work.use_layer + 1, np.zeros(len(by), bool)
    cuts = np.sort(rng.integers(after[:, None], np.maximum(by, after)[:, None] + 1, (len(by), 4)), axis=1)
    fast, single = rng.random(len(by)) < 0.7, (by > after) & has_gap
    leave, left = cuts[:, 0], np.maximum(cuts[:, 1], cuts[:, 0] + 1)
    arrive, arrived = np.minimum(cuts[:, 2], cuts[:, 3] - 1), cuts[:, 3]
    wide = has_gap & (left <= arrive)
    # without a gap a unit can change its tier nowhere: all of it is fast then
    stuck = np.isin(work.use_unit, work.use_unit[has_gap & ~single])
    leave, left = np.where(single, np.minimum(leave, by - 1), after), np.where(single, np.minimum(left, by), after + 1)
    arrive, arrived = np.maximum(arrive, after), np.maximum(arrived, np.maximum(arrive, after) + 1)
    return Choice(fast | stuck, wide & ~stuck, leave, left, arrive, arrived)


LAYER_NS, NBYTES = [1_000_000, 3_000_000, 3_000_000] * 2, 4 * MIB
"""Of the two tensors below."""


def _cycles(length):
    """Windows (up from, up by, down from, down by) of one stay a step, unrolled; a move takes a layer or two."""
    for a in range(length):
        for b in (a + 1, a + 2):
            for c in range(b, a + length):
                for d in (c + 1, c + 2):
                    if d <= a + length:
                        yield a, b, c, d


@pytest.mark.parametrize(
    ("link", "full_duplex", "hidden", "lost"),
    [
        (1.5e9, False, True, 0),
        (1e9, False, False, 0),
        (1e9, True, False, 0),
        (4e9, True, True, 0),
        (4e9, True, False, 10),
        (1e9, False, False, 10),
        (1e9, True, False, 200),
        (1e9, False, False, 2000),
    ],
)
def test_of_all_plans_of_two_tensors_none_beats_the_bound_and_the_best_reaches_it(link, full_duplex, hidden, lost):
    """Room for one: the other comes while the first is not used, if 2.8 ms hide behind the layers between. Where 4,096
    KiB take `lost` ns each from compute, no plan is hidden."""
    profile, plans = _plans_of_two_tensors()
    machine = make_machine(
        NBYTES,
        promote=int(link),
        demote=int(link),
        full_duplex=full_duplex,
        slow_bw=4 * GB,
        slow_write_bw=4 * GB,
        lost_ns_per_kib=lost,
    )
    times = [simulate(plan, profile, machine).step_ns or 0 for plan in plans]
    least = bound(profile, machine).step_ns
    assert len(times) > 100
    assert least - 6 <= min(times)
    if lost:
        free = replace(machine, links=tuple(replace(x, lost_ns_per_kib=0.0) for x in machine.links))
        assert bound(profile, free).step_ns * 1.001 < least  # the bound knows the price
    if lost == 10 and link == 4e9:
        assert min(times) == pytest.approx(sum(LAYER_NS) + 4 * NBYTES / 1024 * lost, abs=8)
        assert min(times) == pytest.approx(least, rel=1e-4)
    if hidden:
        assert min(times) == sum(LAYER_NS) == pytest.approx(least, rel=1e-4)
    assert max(times) > 1.05 * min(times)  # the control: plans differ


@functools.cache
def _plans_of_two_tensors():
    """The profile, and all its plans that hold one of the tensors at a time. Whether they keep the laws depends on no
    link."""
    profile = make_profile([param("a", NBYTES, [0]), param("b", NBYTES, [3])], 6, layer_ns=LAYER_NS)
    cycles = [None, *_cycles(6)]
    first = [_plan(profile, (cycle, None), NBYTES).held_bytes[0] for cycle in cycles]
    other = [_plan(profile, (None, cycle), NBYTES).held_bytes[0] for cycle in cycles]
    pairs = itertools.product(zip(cycles, first, strict=True), zip(cycles, other, strict=True))
    both = [(a, b) for (a, x), (b, y) in pairs if (x + y).max() <= NBYTES]
    plans = [_plan(profile, cycles, NBYTES) for cycles in both]
    for plan in plans:
        check(plan, profile, make_machine(NBYTES))
    return profile, plans


def _plan(profile, cycles, nbytes):
    tiers, moves = [], []
    for block, cycle in enumerate(cycles):
        tiers.append(1)
        if cycle is None:
            continue
        length = profile.n_layers
        for source, begin, due in ((1, *cycle[:2]), (0, *cycle[2:])):
            moves.append((block, source, 1 - source, begin % length, begin % length + due - begin))
        a, b, _, d = cycle
        for turn in (-length, 0, length):
            if b + turn <= 0 < d + turn:
                tiers[block] = 0
        if any(a + turn < 0 < b + turn for turn in (-length, 0)):
            tiers[block] = 1
    moves.sort(key=lambda move: move[1])
    return persistent_plan(profile, tiers, moves, fast_bytes=nbytes)
