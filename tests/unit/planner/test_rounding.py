"""Shares of timelines on whole pages."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.planner.master import Columns, Master
from sentinel.planner.pool import reserve
from sentinel.planner.pricing import Pricer, Prices
from sentinel.planner.relaxation import find_candidates, merge_alike
from sentinel.planner.rounding import Dive, pinned_units, round_to_pages, unpinned_shorts
from sentinel.planner.workload import make_workload
from tests.builders import act, make_machine, make_profile, param

PAGES = 16
LARGE = PAGES * 4096


def always_fast(work):
    """Columns in which each class stays in fast memory all its life, and the class of each unit."""
    merged, of = merge_alike(work)
    none, columns = np.zeros(work.n_layers), Columns(merged)
    columns.add(Pricer(merged).best(Prices(none, none, none, np.ones(work.n_layers), none[:, None], none))[0])
    return columns, of


@pytest.mark.parametrize(("share", "fast"), [(0.0, 0), (0.5, 8), (0.53, 8), (1.0, 16), (3 / 16, 0)])
def test_a_unit_is_cut_at_whole_pages_and_crumbs_are_not_worth_a_part(share, fast):
    work = make_workload(make_profile([param("p", LARGE, [0, 2])], 4), make_machine(), 0)
    columns, of = always_fast(work)
    decision = round_to_pages(work, of, columns, np.array([share]), reserve(work, work.budget_bytes))
    pages = {int(part["tier"]): int(part["pages"]) for part in decision.parts}
    if share == 3 / 16:  # the only column has the crumbs: they have nowhere else to go
        fast = 3
    assert pages.get(0, 0) == fast
    assert sum(pages.values()) == PAGES


def test_no_layer_holds_more_than_the_budget():
    work = make_workload(make_profile([param("p", LARGE, [0]), param("q", LARGE, [1])], 4), make_machine(LARGE), 0)
    columns, of = always_fast(work)
    decision = round_to_pages(work, of, columns, np.array([0.75, 0.75]), reserve(work, work.budget_bytes))
    assert decision.parts["pages"][decision.parts["tier"] == 0].sum() == PAGES


def test_a_large_class_takes_no_page_of_what_is_pooled():
    """Of two units of 16 GiB one is pooled. A solver's share of half the class and a ten-millionth is a page more."""
    large = 16 << 30
    profile = make_profile([act("a", large, 0, 2, [1]), act("b", large, 0, 2, [1])], 4)
    work = make_workload(profile, make_machine(3 * large), 0)
    columns, of = always_fast(work)
    assert of.tolist() == [0, 0]
    short = reserve(work, work.budget_bytes, others=np.array([0]))
    assert short.pooled.tolist() == [0]
    decision = round_to_pages(work, of, columns, np.array([0.5 + 1e-7]), short)
    pages = np.bincount(decision.parts["unit"], decision.parts["pages"])
    assert pages.tolist() == [large // 4096, large // 4096]
    assert decision.parts["tier"].tolist() == [0, 0]


def test_units_of_one_class_share_its_pages_one_after_the_other():
    work = make_workload(make_profile([param("p", LARGE, [0]), param("q", LARGE, [0])], 4), make_machine(), 0)
    columns, of = always_fast(work)
    assert of.tolist() == [0, 0]
    decision = round_to_pages(work, of, columns, np.array([0.75]), reserve(work, work.budget_bytes))
    parts = [(int(p["unit"]), int(p["page"]), int(p["pages"]), int(p["tier"])) for p in decision.parts]
    assert parts == [(0, 0, 16, 0), (1, 0, 8, 0), (1, 8, 8, 1)]


def test_diving_ends_in_whole_numbers_of_pinned_units():
    """Room for one and a half of two transients that are alike: the relaxed program pins three quarters of both."""
    profile = make_profile([act("a", LARGE, 0, 3, [2]), act("b", LARGE, 0, 3, [2])], 6)
    work = make_workload(profile, make_machine(LARGE * 3 // 2, promote=1, demote=1), 0)
    columns, of = always_fast(work)
    merged, members = columns.work, np.bincount(of)
    master = Master(merged, columns, find_candidates(work, merged, of))
    relaxed = master.solve()
    dive = Dive(master, relaxed, members)
    dive.run(10)
    count = dive.mix.pinned * members[0]
    assert count.tolist() == pytest.approx([round(count[0])])
    assert dive.mix.step_ns >= relaxed.step_ns * (1 - 1e-9)
    assert len(pinned_units(work, of, master.candidates, dive.mix)) == round(count[0])


def test_of_short_lived_tensors_the_share_that_is_not_pinned_is_slow():
    profile = make_profile([act("a", LARGE, 1, 2, [1]), act("b", LARGE, 1, 2, [1])], 3)
    work = make_workload(profile, make_machine(LARGE), 0)
    columns, of = always_fast(work)
    candidates = find_candidates(work, columns.work, of)
    assert candidates.of.tolist() == [0, 0]
    for share, slow in ((0.0, [True, True]), (0.5, [False, True]), (1.0, [False, False])):
        mix = Pinned(np.array([share]))
        assert unpinned_shorts(work, candidates, mix).tolist() == slow


class Pinned:
    """As much of a mix as is asked for."""

    def __init__(self, pinned):
        self.pinned = pinned
