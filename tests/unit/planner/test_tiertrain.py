"""Our reading of TierTrain's policy on steps whose plan follows from it."""

from __future__ import annotations

import numpy as np

from sentinel.core.laws import check
from sentinel.planner import footprint_bytes, load_policy
from sentinel.planner.moving_rivals import DEPTHS, SMALLEST_BYTES, saved_gaps
from sentinel.planner.workload import make_workload
from sentinel.simulator import simulate
from tests.builders import GB, MIB, act, make_machine, make_profile, param

SIZE = 4 * MIB
LAYERS = 12


def saved(links=4 * GB, fast=0, layer_ns=10_000_000):
    """Forward makes `early` in layer 0 and `late` in layer 4; backward reads them in layers 11 and 6."""
    specs = [
        param("weight", SIZE, [0, 11]),
        act("early", SIZE, 0, 12, [1, 11]),
        act("late", SIZE, 4, 7, [5, 6]),
        act("small", SMALLEST_BYTES // 2, 0, 12, [11]),
        act("grad", SIZE, 7, 12, [11], role="grad"),
    ]
    profile = make_profile(specs, LAYERS, layer_ns=layer_ns)
    machine = make_machine(fast or footprint_bytes(profile), promote=links, demote=links)
    return profile, machine


def moves_of(plan, profile):
    """(name, target, start, due) of each migration."""
    return sorted((profile.names[plan.blocks[m.block].tensors[0]], m.target, m.start, m.due) for m in plan.migrations)


def test_what_waits_for_backward_leaves_behind_its_use_in_forward_and_is_back_in_the_layer_before_it_is_read():
    """1.05 ms over the link, layers of 10 ms: one layer out, one layer back. `late` waits for no layer. What fits stays
    no less: fast memory is to be free."""
    profile, machine = saved()
    made = load_policy("tiertrain").plan(profile, machine)
    check(made, profile, machine)
    assert moves_of(made, profile) == [("early", 0, 10, 11), ("early", 1, 2, 3)]
    assert made.details["depth"] == DEPTHS[0]
    run = simulate(made, profile, machine)
    assert run.step_ns == made.predicted_step_ns == LAYERS * 10_000_000
    assert run.fast_mean_bytes < made.fast_peak_bytes


def test_only_large_tensors_that_forward_makes_wait_and_each_once():
    profile, machine = saved()
    work = make_workload(profile, machine, 0)
    rows = np.flatnonzero(saved_gaps(work))
    names = [profile.names[work.units.members(int(unit))[0]] for unit in work.use_unit[rows]]
    assert names == ["early"]
    assert work.use_layer[rows].tolist() == [1]


def test_the_queue_is_as_deep_as_the_link_needs_and_no_deeper():
    """25 ms over the link, layers of 10 ms: back in time from three layers ahead on."""
    profile, machine = saved(links=SIZE * 40)
    made = load_policy("tiertrain").plan(profile, machine)
    assert made.details["depth"] == 3
    assert moves_of(made, profile) == [("early", 0, 8, 11), ("early", 1, 2, 5)]
    assert made.predicted_step_ns == LAYERS * 10_000_000


def test_what_the_link_cannot_bring_back_in_time_does_not_leave():
    profile, machine = saved(links=SIZE * 10)  # 100 ms, and it waits for 90
    assert not load_policy("tiertrain").plan(profile, machine).migrations


def test_under_a_hard_limit_what_is_there_before_the_step_comes_first_and_the_rest_is_born_in_slow_memory():
    profile, machine = saved(fast=SIZE + MIB)
    made = load_policy("tiertrain").plan(profile, machine)
    check(made, profile, machine)
    tiers = {profile.names[b.tensors[0]]: b.tier for b in made.blocks if len(b.tensors)}
    assert tiers["weight"] == 0
    assert tiers["early"] == 1
    assert made.fast_peak_bytes <= machine.fast.capacity_bytes
