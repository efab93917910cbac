"""What may be pinned, and the room and time that it counts for."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner.relaxation import find_candidates, layer_base_ms, merge_alike, worth_pinning
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

LARGE = 1 << 20


def candidates_of(work, **more):
    merged, of = merge_alike(work)
    return find_candidates(work, merged, of, **more)


def work_of(*specs, n_layers=4):
    return make_workload(make_profile(specs, n_layers), make_machine(8 * LARGE), 0)


def test_transients_are_candidates_and_what_persists_is_not():
    work = work_of(param("p", LARGE, [0]), act("long", LARGE, 0, 3, [2]), act("short", LARGE, 1, 2, [1]))
    found = candidates_of(work)
    assert found.unit_class.tolist() == [-1, 1]  # the short-lived ones first; class 0 is `p`
    assert found.nbytes.tolist() == [LARGE, LARGE]
    assert candidates_of(work, most_entries=0).unit_class.tolist() == [-1]


def test_a_candidate_takes_room_at_every_instant_at_which_it_is_alive():
    work = work_of(act("long", LARGE, 0, 3, [2]), act("short", LARGE, 1, 2, [1]))
    found = candidates_of(work)
    held = np.zeros((2, 4))
    np.add.at(held, (found.row_group, found.row_layer[found.row]), found.row_bytes)
    # layer 2 has no birth: the room of what is alive throughout is not counted at one of its instants
    assert held[0].tolist() == [0, LARGE, 0, 0]
    assert held[1].tolist()[:2] == [LARGE, LARGE]


def test_short_lived_tensors_are_pinned_where_their_room_costs_less_than_they_save():
    found = candidates_of(work_of(act("short", LARGE, 1, 2, [1])))
    gain = float(found.use_ns[0])
    for paid, worth in ((gain * 0.9, True), (gain * 1.1, False)):
        prices = np.where(found.exists, paid / LARGE, 0.0)
        assert worth_pinning(found, prices, np.ones(4)).tolist() == [worth]
    assert worth_pinning(found, np.zeros(found.exists.shape), np.zeros(4)).tolist() == [False]


def test_a_layer_takes_its_slow_uses_longer_than_the_least_it_can_take():
    work = work_of(param("p", LARGE, [0, 2]), act("short", LARGE, 1, 2, [1]))
    base, least = layer_base_ms(work, candidates_of(work))
    p, short = work.use_ns[0] / 1e6, work.short_ns[0] / 1e6
    assert (base - least).tolist() == pytest.approx([p, short, p, 0])
    assert (layer_base_ms(work, None)[0] - least).tolist() == pytest.approx([p, 0, p, 0])
