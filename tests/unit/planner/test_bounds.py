"""The bound where the least step is known without a program."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.cost import base_ns, slow_extra_ns
from sentinel.planner import bound_program, lower_bound
from sentinel.planner.bound_program import Program, least_extra_ns, make_groups, most_saved_ns, room_rows
from sentinel.planner.lower_bound import Certifier, bound, exchange_bound
from sentinel.planner.master import Master
from tests.builders import GB, MIB, act, make_machine, make_profile, param
from tests.three_tiers import three_tiers
from tests.unit.test_planner import network

LARGE = 1 << 20


@pytest.mark.parametrize(("share", "served"), [(0, 0), (0.5, 0.5), (1, 1), (2, 1)])
def test_a_tensor_that_cannot_move_is_served_by_fast_memory_as_far_as_it_fits(share, served):
    profile = make_profile([param("p", LARGE, [0, 1, 2, 3])], 4)
    least = bound(profile, make_machine(int(share * LARGE), promote=1, demote=1))
    slow = slow_extra_ns(profile, make_machine(), 1).sum() * (1 - served)
    assert least.loose == ""
    assert least.step_ns == pytest.approx(profile.layer_ns.sum() + slow, rel=1e-3)


def test_no_prices_at_all_prove_the_least_that_layers_take():
    profile = make_profile([param("p", LARGE, [0, 2])], 4)
    machine = make_machine(LARGE // 2)
    groups = make_groups(profile, slow_extra_ns(profile, machine, 1), machine.fast.capacity_bytes)
    program = Program(groups, profile, machine, *base_ns(profile, machine))
    proved = Certifier(program).least_ms(np.zeros(program.n_rows))
    assert proved == pytest.approx(program.least_ms.sum())


def test_pages_that_change_places_within_a_layer_need_no_room_beside_them():
    """Room for one of two that take turns in every layer; the link brings one in in half a layer."""
    profile = make_profile([param("a", LARGE, [0, 2]), param("b", LARGE, [1, 3])], 4)
    link = LARGE * 2000
    machine = make_machine(LARGE, promote=link, demote=link, slow_bw=link, slow_write_bw=link)
    all_fast = int(profile.layer_ns.sum())
    assert exchange_bound(profile, machine).step_ns == pytest.approx(all_fast, rel=1e-6)
    assert bound(profile, machine).step_ns > all_fast * 1.1


def test_a_link_that_is_too_slow_bounds_an_exchange_too():
    """As above, but half of what takes turns fits through the link in a layer; the rest is read in slow memory."""
    profile = make_profile([param("a", LARGE, [0, 2]), param("b", LARGE, [1, 3])], 4)
    machine = make_machine(LARGE, promote=LARGE * 500, demote=LARGE * 500, slow_bw=GB, slow_write_bw=GB)
    slow_ns = slow_extra_ns(profile, machine, 1).sum()
    found = exchange_bound(profile, machine).step_ns - int(profile.layer_ns.sum())
    assert 0.1 * slow_ns < found < 0.9 * slow_ns


def test_what_moves_holds_room_in_all_layers_of_its_life_and_what_stays_by_events():
    profile = make_profile([act("t", LARGE, 1, 3, [2]), param("p", LARGE, [0])], 4)
    machine = make_machine(LARGE)
    groups = make_groups(profile, slow_extra_ns(profile, machine, 1), LARGE)
    room = room_rows(profile, groups)
    _, group, age = room.moving
    alive = {(int(g), int(a)) for g, a in zip(group, age, strict=True)}
    t, p = int(groups.of[0]), int(groups.of[1])
    assert alive == {(t, 0), (t, 1), (p, 0), (p, 1), (p, 2), (p, 3)}
    assert set(room.staying[1].tolist()) == {t}


def test_a_tier_behind_never_costs_less_than_a_tier_before_it_is_taken_to():
    profile = make_profile([param("p", LARGE, [0])], 2)
    middle, last = least_extra_ns(profile, three_tiers(middle_bw=2 * GB, middle_link=GB, slow_bw=10 * GB))
    assert middle.tolist() == last.tolist()  # the last tier is the faster one: what is behind the middle may be used


def test_a_middle_tier_saves_no_more_than_its_bytes_do():
    profile = make_profile([param("a", LARGE, [0]), param("b", LARGE, [0])], 2)
    groups = make_groups(profile, slow_extra_ns(profile, make_machine(), 1), LARGE)
    saved = np.array([8.0])  # both are alike: one group, used once
    for capacity, most in ((0, 0.0), (LARGE, 4.0), (4 * LARGE, 8.0)):
        assert most_saved_ns(profile, groups, saved, capacity).tolist() == pytest.approx([most, 0])


def test_what_does_not_fit_into_the_program_is_left_out_the_fewest_bytes_first(monkeypatch):
    """Two groups of four layers each, and room for six: the larger one is counted, and the bound stays one."""
    profile = make_profile([param("small", LARGE, [0, 1]), param("large", 4 * LARGE, [0, 2])], 4)
    machine = make_machine(LARGE, promote=1, demote=1)
    whole = bound(profile, machine)
    monkeypatch.setattr(bound_program, "MOST_GROUP_LAYERS", 6)
    groups = make_groups(profile, slow_extra_ns(profile, machine, 1), machine.fast.capacity_bytes)
    assert groups.of.tolist() == [-1, 0]
    assert int((groups.stop - groups.start).sum()) == 4
    assert profile.layer_ns.sum() < bound(profile, machine).step_ns < whole.step_ns
    monkeypatch.setattr(bound_program, "MOST_GROUP_LAYERS", 3)
    assert bound(profile, machine).step_ns == pytest.approx(profile.layer_ns.sum())


@pytest.mark.parametrize("rounds", [0, 1])
def test_no_other_round_begins_once_no_time_is_left(monkeypatch, rounds):
    profile, machine = network(), make_machine(8 * MIB)
    asked = []

    def left_s():
        asked.append(1)
        return 5.0 if len(asked) <= rounds else 0.0

    monkeypatch.setattr(lower_bound, "_solve", lambda *_: pytest.fail("solved all the same"))
    found = bound(profile, machine, left_s=left_s)
    assert len(asked) == rounds + 2  # before the round that did not begin, and before the solver's own
    assert "did not end within" in found.loose
    monkeypatch.undo()
    assert found.step_ns <= bound(profile, machine).step_ns


def test_one_solve_of_the_prices_ends_at_the_limit_too(monkeypatch):
    limits = []
    solve = Master.solve

    def seen(self):
        limits.append(self.highs.getOptionValue("time_limit")[1])
        return solve(self)

    monkeypatch.setattr(Master, "solve", seen)
    bound(network(), make_machine(8 * MIB), time_limit_s=7.0)
    assert set(limits) == {7.0}
    limits.clear()
    monkeypatch.setattr(lower_bound, "_solve", lambda _, seconds: limits.append(seconds))
    monkeypatch.setattr(lower_bound, "_NEAR", -1.0)  # whatever the prices prove, the solver is to run
    bound(network(), make_machine(8 * MIB), time_limit_s=70.0, left_s=lambda: 3.0)
    assert len(limits) > 1
    assert all(3.0 <= seconds < 4.0 for seconds in limits)  # by its own clock, which has run for a moment
