"""Which slower tier what is not fast goes to."""

from __future__ import annotations

import numpy as np

from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.slow_tier_assignment import Costs, SlowTierAssigner
from sentinel.planner.workload import make_workload
from tests.builders import act, make_profile, param
from tests.three_tiers import three_tiers

LARGE = 1 << 20


def assigner_of(profile, machine, *, weighed=True):
    works = [make_workload(profile, machine, 1 << 40, tier) for tier in (1, 2)]
    use_ns, short_ns = tuple(w.use_ns for w in works), tuple(w.short_ns for w in works)
    costs = Costs(works[0], use_ns, short_ns, np.zeros(2)) if weighed else None
    return works[0], SlowTierAssigner(works[0].units, profile, machine, (1, 2), costs)


def all_slow(work):
    return Decision(whole_parts(work.units, 1), no_moves(), np.ones(len(work.units.short), np.int64))


def test_the_middle_tier_takes_what_gains_most_by_it():
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    work, assigner = assigner_of(profile, three_tiers(0, LARGE))
    decision, tier_of = assigner.assign(all_slow(work))
    assert decision.slow_tiers_chosen
    assert decision.parts["tier"].tolist() == tier_of.unit.tolist() == [2, 1]


def test_without_costs_the_middle_tier_is_filled_in_order():
    profile = make_profile([param("cold", LARGE, [0]), param("hot", LARGE, [0, 1, 2])], 4)
    work, assigner = assigner_of(profile, three_tiers(0, LARGE), weighed=False)
    assert assigner.assign(all_slow(work))[0].parts["tier"].tolist() == [1, 2]


def test_room_is_counted_by_layers():
    """Two transients that are never alive together fit into the room of one."""
    profile = make_profile([act("a", LARGE, 0, 2, [1]), act("b", LARGE, 2, 4, [3])], 4)
    work, assigner = assigner_of(profile, three_tiers(0, LARGE))
    assert assigner.assign(all_slow(work))[0].parts["tier"].tolist() == [1, 1]


def test_of_short_lived_tensors_as_many_as_fit_at_one_time_get_the_faster_tier():
    profile = make_profile([act("written", LARGE, 0, 1), act("read too", LARGE, 0, 1, [0])], 2)
    work, assigner = assigner_of(profile, three_tiers(0, LARGE))
    assert assigner.assign(all_slow(work))[0].short_tier.tolist() == [2, 1]


def test_what_is_fast_keeps_its_tier():
    profile = make_profile([param("fast", LARGE, [0]), param("slow", LARGE, [1])], 2)
    work, assigner = assigner_of(profile, three_tiers(LARGE, 4 * LARGE))
    decision = Decision(whole_parts(work.units, np.array([0, 1])), no_moves(), np.zeros(0, np.int64))
    assert assigner.assign(decision)[0].parts["tier"].tolist() == [0, 1]
