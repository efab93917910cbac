"""A block that cannot move is left alone for a while, one way, and then tried again."""

from __future__ import annotations

import errno

import pytest

from sentinel.core.run import OUTCOMES
from sentinel.migration.backoff import FAILURES, HOLD_STEPS, Backoff
from sentinel.system import native
from tests.builders import MIB, make_profile, param, persistent_plan
from tests.unit.engine_builders import INSTANT, applied, emulated_machine
from tests.unit.test_engine_faults import CLOCK_NANOSLEEP, stepwise


def test_nothing_is_held_that_does_not_fail() -> None:
    backoff = Backoff()
    for step in range(100):
        backoff.moved(7, 1)
        assert not backoff.holds(7, 1, step)


def test_failures_in_a_row_hold_a_block_one_way_and_for_a_while() -> None:
    backoff = Backoff()
    assert [backoff.failed(7, 1, step) for step in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    held = [step for step in range(FAILURES, 100) if backoff.holds(7, 1, step)]
    assert held == list(range(FAILURES, FAILURES + HOLD_STEPS))
    assert not backoff.holds(7, 0, FAILURES)
    assert not backoff.holds(8, 1, FAILURES)
    assert backoff.failed(7, 1, 50)  # one more failure is enough
    backoff.moved(7, 1)
    assert not backoff.holds(7, 1, 51)
    assert not backoff.failed(7, 1, 52)


@pytest.mark.needs("native")
def test_the_engine_stops_asking_and_asks_again() -> None:
    profile = make_profile([param("a", MIB, [0, 1])], 4)
    plan = persistent_plan(profile, [0], [(0, 0, 1, 1, 2), (0, 1, 0, 3, 4)], fast_bytes=MIB)
    with applied(plan, profile, emulated_machine(MIB, promote=INSTANT, demote=INSTANT)) as running:
        for _ in range(FAILURES):
            native.library().sn_system_fail(CLOCK_NANOSLEEP, 1, errno.EIO)
            stepwise(running, fail_in=-1, layers=4)
        for _ in range(HOLD_STEPS + 2):
            stepwise(running, fail_in=-1, layers=4)
        run = running.engine.end_run()
    down = run.migrations[run.migrations["target"] == 1]
    assert [OUTCOMES[row["outcome"]] for row in down] == ["failed"] * FAILURES + ["skipped"] * HOLD_STEPS + ["done"] * 2
    assert run.counters.held_back == HOLD_STEPS
    assert "held where it is" in run.events[-1][1]
    assert run.layers["fast_bytes"].max() <= MIB
