"""Test and trial: some steps of each way, then the faster one, if it is clearly faster."""

from __future__ import annotations

import itertools
import random

import pytest

from sentinel.core.run import TrialDecision
from sentinel.migration.trials import BETWEEN, FIRST_REST, NEGLIGIBLE, ROUNDS, TRIES, Finding, Trials, finding

MS = 10**6


BOUNDARIES = {2: "h.1", 5: "h.4"}


class Job:
    """Steps of one window, always late: `wait_ns` and `slower_ns` of a window that waits, and of one that does not.

    `noise()` is added to either. The first late steps are over.
    """

    def __init__(self, wait_ns: int, slower_ns: int, window_ns: int = 100 * MS, noise=lambda: 0) -> None:
        self.wait_ns, self.slower_ns, self.window_ns, self.noise = wait_ns, slower_ns, window_ns, lambda: 0
        self.said: list[TrialDecision] = []
        self.trials = Trials(BOUNDARIES, self.said.append)
        self.now = 0
        assert self.steps(BETWEEN) == [True] * BETWEEN
        self.noise = noise

    def step(self) -> bool:
        """One step; whether it waited."""
        self.trials.enter(2, self.now)
        waits = self.trials.wait(2)
        if waits:
            self.trials.waited(self.wait_ns)
        self.now += self.window_ns + self.noise() + (self.wait_ns if waits else self.slower_ns)
        self.trials.enter(5, self.now)
        self.now += 50
        return waits

    def steps(self, times: int) -> list[bool]:
        return [self.step() for _ in range(times)]


def test_without_late_migrations_nothing_is_tried_or_decided() -> None:
    said: list[TrialDecision] = []
    trials = Trials(BOUNDARIES, said.append)
    for step in range(3):
        trials.enter(2, step * 100)
        trials.enter(5, step * 100 + 50)
    assert said == []


@pytest.mark.parametrize(("wait_ms", "slower_ms", "waits"), [(30, 40, True), (40, 30, False), (30, 30, True)])
def test_on_a_quiet_machine_the_faster_way_is_kept(wait_ms: int, slower_ms: int, waits: bool) -> None:
    job = Job(wait_ms * MS, slower_ms * MS)
    assert job.steps(2 * TRIES + 5) == [True, False] * TRIES + [waits] * 5
    assert job.said == [TrialDecision(2, "h.1", waits, False, wait_ms * MS, 100 * MS, slower_ms * MS, 0)]


def test_a_wait_that_is_small_beside_its_window_is_no_reason_for_a_trial() -> None:
    small = Job(wait_ns=100 * MS // NEGLIGIBLE, slower_ns=0)
    assert all(small.steps(50))
    assert small.said == []
    large = Job(wait_ns=100 * MS // NEGLIGIBLE + MS, slower_ns=0)
    assert not all(large.steps(2 * TRIES))
    assert len(large.said) == 1


ALL = ROUNDS * (2 * TRIES + BETWEEN)
"""Steps of a trial that takes all its rounds, at most."""


@pytest.mark.parametrize(("slower_ms", "least", "most"), [(3, 0, 50), (0, 500, 1000)])
def test_on_a_noisy_machine_the_plan_stands_unless_leaving_is_clearly_faster(
    slower_ms: int, least: int, most: int
) -> None:
    """Waits are 2 % of a window, and windows vary by up to 9: chance hardly ever says that the slower way is faster."""
    draw = random.Random(20210)
    left = 0
    for _ in range(1000):
        job = Job(2 * MS, slower_ms * MS, noise=lambda: int(min(draw.expovariate(1 / 3), 9) * MS))
        left += not job.steps(ALL + 1)[-1]
    assert least <= left <= most


def test_what_is_not_clear_is_tried_on_later_and_the_plan_stands_meanwhile() -> None:
    slower_and_slower = itertools.count(0, MS)
    job = Job(5 * MS, 4 * MS, noise=lambda: next(slower_and_slower))
    round_ = [True, False] * TRIES
    assert job.steps(ALL) == (round_ + [True] * BETWEEN) * ROUNDS
    assert job.steps(FIRST_REST - BETWEEN) == [True] * (FIRST_REST - BETWEEN)
    assert job.steps(2 * TRIES) == round_
    assert len(job.said) == 1


def test_the_same_choice_by_one_window_each_would_be_chance() -> None:
    """The control of the test above: the numbers there do say now this, now that."""
    draw = random.Random(20210)
    shorter = sum(3 + min(draw.expovariate(1 / 3), 9) < 2 + min(draw.expovariate(1 / 3), 9) for _ in range(1000))
    assert 300 < shorter < 500


def test_one_window_that_something_else_disturbs_decides_nothing() -> None:
    for disturbed in range(2 * TRIES):
        noises = iter([(step == disturbed) * 500 * MS for step in range(2 * TRIES + 1)])
        for slower_ms, waits in ((2, False), (50, True)):
            job = Job(30 * MS, slower_ms * MS, noise=lambda noises=noises: next(noises, 0))
            assert job.steps(ALL + 1)[-1] is waits


def test_what_seems_faster_with_bytes_in_slow_memory_is_noise() -> None:
    assert finding([5] * 3, [100] * 3, [90] * 3) == Finding(wait_ns=5, slower_ns=-10, noise_ns=10)
    assert finding([5] * 3, [100] * 3, [90] * 3).waits
    assert not finding([25] * 3, [100] * 3, [90] * 3).waits


def test_a_decision_is_tried_again_after_a_while_and_then_after_twice_as_long() -> None:
    job = Job(40 * MS, 30 * MS)
    job.steps(2 * TRIES)
    assert job.steps(FIRST_REST) == [False] * FIRST_REST
    job.slower_ns = 90 * MS  # something else needs the slow memory now
    assert job.steps(2 * TRIES) == [True, False] * TRIES
    assert job.steps(2 * FIRST_REST) == [True] * 2 * FIRST_REST
    assert job.steps(2 * TRIES) == [True, False] * TRIES
    assert [(said.again, said.waits) for said in job.said] == [
        (False, False),
        (True, True),
    ]  # no third: it changed nothing


def test_layers_are_tried_side_by_side_each_by_its_own_window() -> None:
    said: list[TrialDecision] = []
    trials = Trials({0: "h.0", 4: "h.3"}, said.append)
    now, seen = 0, []
    for _ in range(BETWEEN + 2 * TRIES + 1):
        for layer, wait, slower in ((0, 10, 30), (4, 20, 10)):
            trials.enter(layer, now)
            waits = trials.wait(layer)
            seen.append(waits)
            if waits:
                trials.waited(wait)
            now += 100 + (wait if waits else slower)
    assert seen[:-2] == [True, True] * BETWEEN + [True, True, False, False] * TRIES
    trials.enter(0, now)
    assert (trials.wait(0), seen[-2], trials.wait(4)) == (True, True, False)
    assert [(decision.layer, decision.name) for decision in said] == [(0, "h.0"), (4, "h.3")]


def test_a_window_out_of_step_is_tried_again() -> None:
    job = Job(40 * MS, 30 * MS)
    job.trials.enter(2, job.now)
    assert job.trials.wait(2)
    job.trials.abandon()
    assert job.steps(2 * TRIES) == [True, False] * TRIES  # the first try says nothing


def test_a_step_in_which_they_arrive_is_no_trial() -> None:
    job = Job(40 * MS, 30 * MS)
    assert job.step()
    job.trials.enter(2, job.now)  # all arrived this time
    job.now += 100 * MS
    job.trials.enter(5, job.now)
    assert job.steps(2) == [False, True]
    assert job.said == []
