"""Units, their uses, and what slow memory costs them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.cost import lost_ns_per_byte
from sentinel.planner.relaxation import merge_alike
from sentinel.planner.workload import SlowTierOf, make_units, make_workload, short_peaks
from tests.builders import GB, TensorSpec, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers

LARGE = 1 << 16


def test_small_tensors_of_one_life_and_the_same_layers_are_one_unit():
    specs = [act(name, 4096, 0, 3, [2]) for name in ("a", "b")]
    specs += [act("other layers", 4096, 0, 3, [1]), act("large", LARGE, 0, 3, [2])]
    units = make_units(make_profile(specs, 4))
    assert sorted(units.members(unit).tolist() for unit in range(len(units))) == [[0, 1], [2], [3]]
    assert sorted(units.nbytes.tolist()) == [4096, 2 * 4096, LARGE]


def test_small_persistent_neighbours_share_a_unit_and_keep_their_own_pages():
    specs = [param("a", 100, [0]), param("b", 100, [0]), param("elsewhere", 100, [1])]
    units = make_units(make_profile(specs, 2))
    assert [units.members(unit).tolist() for unit in range(len(units))] == [[0, 1], [2]]
    assert units.inner[:2].tolist() == [0, 4096]


def test_what_lives_one_layer_is_no_unit():
    units = make_units(make_profile([act("short", LARGE, 1, 2), act("long", LARGE, 0, 2)], 3))
    assert (units.short.tolist(), units.tensors.tolist()) == ([0], [1])


def test_a_use_costs_the_bytes_over_the_difference_of_the_bandwidths():
    profile = make_profile([param("a", LARGE, [0, 2])], 3)
    work = make_workload(profile, make_machine(fast_bw=100 * GB, slow_bw=10 * GB), 0)
    assert work.use_layer.tolist() == [0, 2]
    assert work.use_ns.tolist() == pytest.approx([LARGE * (1 / 10 - 1 / 100)] * 2)


def test_a_birth_is_a_use_of_no_value_and_layers_count_on_round_the_ring():
    born_before_use = TensorSpec("g", LARGE, 3, 6, {0: (LARGE, 0)})
    work = make_workload(make_profile([born_before_use], 4), make_machine(), 0)
    assert work.use_layer.tolist() == [3, 4]
    assert work.use_ns[0] == 0 < work.use_ns[1]


def test_the_peak_of_a_layer_counts_what_is_alive_at_one_time():
    specs = [act("gone", 4096, 0, 1, dies_early=True), act("a", 4096, 0, 1), act("b", 4096, 1, 2), act("c", 4096, 1, 2)]
    profile = make_profile(specs, 3)
    assert short_peaks(profile, np.arange(4)).tolist() == [4096, 2 * 4096, 0]


def test_units_behind_a_slower_link_take_longer_to_move():
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [1])], 2)
    nobody = np.zeros(0, np.int64)
    machine = three_tiers(middle_link=8 * GB, slow_link=2 * GB)
    work = make_workload(profile, machine, 0, slow_tiers=SlowTierOf(np.array([1, 2]), nobody))
    assert work.per_s == (8e9, 8e9)
    assert work.move_slowdown.tolist() == [[1, 4], [1, 4]]


def test_what_moving_a_unit_takes_from_compute_is_that_of_its_own_link_and_a_class_has_many_moves():
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [1]), param("c", LARGE, [1])], 2)
    slow_tiers = SlowTierOf(np.array([1, 2, 2]), np.zeros(0, np.int64))
    free = three_tiers(middle_link=8 * GB, slow_link=2 * GB)
    assert not make_workload(profile, free, 0, slow_tiers=slow_tiers).lost_ns_per_byte.any()
    links = tuple(
        replace(x, lost_ns_per_kib=51.2 * (x.source + x.target), lost_ns_per_move=1000.0 * (1 + x.source))
        for x in free.links
    )
    work = make_workload(profile, replace(free, links=links), 0, slow_tiers=slow_tiers)
    # 0.05 ns a byte at 8 GB/s and 0.1 at 2: 0.4 of compute each way at most, together 0.8
    assert work.lost_ns_per_byte == pytest.approx(np.array([[0.05, 0.1, 0.1]] * 2))
    assert work.lost_ns_of_moves.tolist() == [[2000, 3000, 3000], [1000, 1000, 1000]]
    merged, of = merge_alike(work)
    assert of.tolist() == [0, 1, 1]
    assert merged.lost_ns_of_moves.tolist() == [[2000, 6000], [1000, 2000]]


def test_moves_that_would_take_more_than_all_of_compute_are_counted_as_taking_all_of_it():
    links = {"promote": GB, "demote": GB, "slow_bw": GB, "lost_ns_per_kib": 1024.0}  # 1 ns a byte at 1 GB/s: all of it
    assert lost_ns_per_byte(make_machine(**links)).tolist() == [[0, 0.5], [0, 0.5]]
    assert lost_ns_per_byte(make_machine(**links, full_duplex=False)).tolist() == [[0, 1], [0, 1]]
