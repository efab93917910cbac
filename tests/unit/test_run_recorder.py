"""A run's tables stay bounded, however long it runs and however much a step has to tell."""

from __future__ import annotations

from sentinel.core.run import TrialDecision
from sentinel.migration.run_recorder import FIRST_STEPS, LAST_STEPS, LEAST_STEPS, MAX_EVENTS, MAX_ROWS, RunRecorder

TIERS = ("fast", "slow")
DECISION = TrialDecision(3, "h.1", True, False, 30, 100, 10, 1)


def run_of(steps: int, rows_a_step: int) -> RunRecorder:
    recorder = RunRecorder()
    for step in range(steps):
        for row in range(rows_a_step):
            recorder.migration((step, 0, row, 0, 1, 4096, 4096, 0, 1, 0, 0, 0), "done")
        recorder.end_step(step + 1, in_step=True, unmanaged_bytes=0)
    return recorder


def test_the_first_and_last_steps_are_kept_and_all_are_counted() -> None:
    run = run_of(1009, 3).run(TIERS, 0, emulated=True)
    assert run.steps["step"].tolist() == [*range(FIRST_STEPS), *range(1009 - LAST_STEPS, 1009)]
    assert len(run.migrations) == 3 * len(run.steps)
    assert run.counters.migrations == 3 * 1009


def test_steps_with_many_rows_are_fewer() -> None:
    each = MAX_ROWS // 5
    run = run_of(20, each).run(TIERS, 0, emulated=True)
    assert run.steps["step"].tolist() == [*range(FIRST_STEPS), *range(15, 20)]
    assert len(run.migrations) == each * len(run.steps)
    assert run.counters.migrations == each * 20


def test_the_last_steps_are_kept_whatever_they_hold() -> None:
    run = run_of(9, MAX_ROWS).run(TIERS, 0, emulated=True)
    assert run.steps["step"].tolist()[-LEAST_STEPS:] == [7, 8]
    assert len(run.steps) == FIRST_STEPS + LEAST_STEPS


def test_what_never_becomes_a_step_is_bounded_too() -> None:
    """An engine that gives way again and again before its step ends."""
    recorder = RunRecorder()
    each = MAX_ROWS // 7
    for turn in range(10):
        for row in range(each):
            recorder.migration((turn, 0, row, 0, 1, 4096, 4096, 0, 1, 0, 0, 0), "done")
        recorder.drop_step()
    run = recorder.run(TIERS, 0, emulated=True)
    assert run.counters.migrations == 10 * each  # all are counted, however few are kept
    assert len(run.migrations) == MAX_ROWS
    assert run.migrations["block"][-1] == each - 1  # the latest


def test_events_are_counted_beyond_a_limit() -> None:
    recorder = RunRecorder()
    for i in range(MAX_EVENTS + 17):
        recorder.event(str(i))
        recorder.trial(DECISION)
    run = recorder.run(TIERS, 0, emulated=True)
    assert (len(run.events), run.counters.events_dropped) == (MAX_EVENTS, 17)
    assert (len(run.trials), run.counters.trials) == (MAX_EVENTS, MAX_EVENTS + 17)


def test_what_went_wrong_under_another_plan_stays_told() -> None:
    first = RunRecorder()
    first.migration((0, 0, 0, 0, 1, 4096, 0, 0, 1, 2, 0, 16), "failed")
    first.migration((0, 0, 1, 0, 1, 8192, 8192, 0, 1, 0, 0, 0), "done")
    first.totals.stayed = {"EBUSY": 7}
    first.event("it stayed")
    first.trial(DECISION)
    for step in range(5):
        first.end_step(step + 1, in_step=True, unmanaged_bytes=0)
    second = RunRecorder(first.run(TIERS, 0, emulated=True))
    second.end_step(1, in_step=True, unmanaged_bytes=0)
    second.event("another")
    second.trial(DECISION)
    second.totals.stayed = {"EBUSY": 4}
    third = RunRecorder(second.run(TIERS, 0, emulated=True)).run(TIERS, 0, emulated=True)
    assert third.events == ((0, "it stayed"), (6, "another"))
    assert third.trials == ((0, DECISION), (6, DECISION))
    assert (third.counters.failed, third.counters.stayed["EBUSY"]) == (1, 11)
    assert third.counters.steps_before == 6
    assert third.counters.migrated_bytes_by_other_plans == 8192
    assert len(third.migrations) == len(third.steps) == 0  # those rows are about other blocks
