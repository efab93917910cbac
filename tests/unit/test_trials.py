"""Test and trial: two steps at most, then the faster way."""

from __future__ import annotations

import pytest

from sentinel.migration.trials import Trials


class Decisions(list):
    def __call__(self, layer: int, sentence: str) -> None:
        self.append((layer, sentence))


def test_without_late_migrations_nothing_is_tried_or_decided() -> None:
    said = Decisions()
    trials = Trials([2, 5], said)
    for step in range(3):
        trials.enter(2, step * 100)
        trials.enter(5, step * 100 + 50)
    assert said == []


@pytest.mark.parametrize(("with_wait", "without", "waits"), [(30, 40, True), (40, 30, False), (30, 30, True)])
def test_the_faster_of_two_steps_is_kept(with_wait: int, without: int, waits: bool) -> None:
    said = Decisions()
    trials = Trials([2, 5], said)
    now, seen = 1000, []
    for took in (with_wait, without, 7, 7, 7):
        trials.enter(2, now)
        seen.append(trials.wait(2))
        trials.enter(5, now + took)
        now += 100
    assert seen == [True, False, waits, waits, waits]
    assert len(said) == 1
    assert said[0][0] == 2
    assert ("waits for them" if waits else "leaves the rest") in said[0][1]


def test_layers_are_tried_side_by_side_each_by_its_own_window() -> None:
    said = Decisions()
    trials = Trials([0, 4], said)
    seen = []
    for begin, first, second in ((0, 10, 30), (100, 20, 10), (200, 1, 1)):
        trials.enter(0, begin)
        seen.append(trials.wait(0))
        trials.enter(4, begin + first)
        seen.append(trials.wait(4))
        trials.enter(0, begin + first + second)
    assert seen == [True, True, False, False, True, False]
    assert [layer for layer, _ in said] == [0, 4]


def test_a_window_out_of_step_is_tried_again() -> None:
    said = Decisions()
    trials = Trials([2], said)
    trials.enter(2, 0)
    assert trials.wait(2)
    trials.abandon()
    trials.enter(2, 1000)
    assert trials.wait(2)  # again: the first try says nothing
    trials.enter(2, 1010)
    assert not trials.wait(2)
    trials.enter(2, 1030)
    assert trials.wait(2)
    assert len(said) == 1


def test_a_step_in_which_they_arrive_is_no_trial() -> None:
    said = Decisions()
    trials = Trials([2], said)
    trials.enter(2, 0)
    assert trials.wait(2)
    trials.enter(2, 50)  # all arrived this time
    trials.enter(2, 60)
    assert not trials.wait(2)
    assert said == []
