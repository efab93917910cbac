"""Counters of a run: what is shown, what adds up, what another plan leaves to the next."""

from __future__ import annotations

from dataclasses import fields

from sentinel.core.counters import Counters
from sentinel.core.run import OUTCOMES

OLD = Counters(steps=5, steps_before=2, migrated_bytes=4096, failed=3, done=7, fast_peak_bytes=11, stayed={"EBUSY": 13})


def test_only_what_was_counted_is_shown_by_name() -> None:
    assert Counters().counted() == {}
    assert list(OLD.counted()) == sorted(OLD.counted())
    assert OLD.counted()["stayed_EBUSY"] == 13
    assert "skipped" not in OLD.counted()


def test_every_outcome_of_a_migration_has_its_counter() -> None:
    counters = Counters()
    for outcome in OUTCOMES:
        counters.add_outcome(outcome)
    assert counters.counted() == {outcome.replace(" ", "_"): 1 for outcome in OUTCOMES}


def test_sums_are_of_every_counter_and_leave_both_as_they_were() -> None:
    ones = Counters(**{f.name: 1 for f in fields(Counters) if f.name != "stayed"}, stayed={"EBUSY": 1, "EIO": 1})
    both = OLD.plus(ones)
    assert (both.steps, both.case1, both.stayed) == (6, 1, {"EBUSY": 14, "EIO": 1})
    assert all(getattr(ones.plus(ones), f.name) == 2 for f in fields(Counters) if f.name != "stayed")
    assert (OLD.steps, OLD.stayed) == (5, {"EBUSY": 13})


def test_what_went_wrong_under_another_plan_is_kept_and_what_it_moved_is_another_plans() -> None:
    kept = OLD.of_another_plan()
    assert kept == Counters(steps_before=7, migrated_bytes_by_other_plans=4096, failed=3, stayed={"EBUSY": 13})
    kept.stayed["EIO"] = 1
    assert "EIO" not in OLD.stayed
