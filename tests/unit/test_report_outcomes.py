"""What the report says of pages that stayed, of pages that the kernel placed, and of a run too long to keep whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sentinel.cli.story import worst
from sentinel.core.counters import Counters
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run, TrialDecision
from sentinel.reports import build_report
from sentinel.reports.caveats import kept_steps, of_run
from sentinel.reports.html.page import page
from sentinel.reports.sections.move_errors import TITLE, stayed, stayed_rows


def run(numbers: list[int], **counters: Any) -> Run:
    rows = np.zeros(len(numbers), STEP_DTYPE)
    rows["step"], rows["in_step"] = numbers, True
    layers, moves = np.zeros(0, LAYER_DTYPE), np.zeros(0, MIGRATION_DTYPE)
    return Run("executed", False, ("fast", "slow"), 100, rows, layers, moves, counters=Counters(**counters))


def test_nothing_stayed_and_nothing_is_said() -> None:
    whole = run([0, 1, 2], steps=3, stayed={"EBUSY": 0})
    assert stayed(None) == []
    assert stayed(whole) == []
    assert stayed_rows(whole) == []
    assert kept_steps(whole) == ""
    assert of_run(whole).all() == []


def test_pages_that_stayed_are_a_table_by_errno() -> None:
    rows = stayed(run([0], steps=1, stayed={"EBUSY": 7, "EACCES": 1009, "EIO": 7}))
    assert [(name, count) for name, count, _ in rows] == [("EACCES", 1009), ("EBUSY", 7), ("EIO", 7)]
    assert "CAP_SYS_NICE" in rows[0][2]
    assert rows[2][2] == "Input/output error"
    assert stayed_rows(run([0], steps=1, stayed={"EBUSY": 7009})) == [
        ("errno", "pages", "meaning"),
        ("EBUSY", "7,009", "in use by someone: pinned, or under I/O"),
    ]


def test_every_form_of_the_report_has_the_table() -> None:
    report = build_report(profile=None, plan=None, machine=None, executed=run([0], steps=1, stayed={"EBUSY": 7009}))
    assert f"{TITLE}\n  errno  pages  meaning\n  EBUSY  7,009  in use by someone" in report.text()
    assert TITLE in page(report)
    assert TITLE not in build_report(profile=None, plan=None, machine=None, executed=run([0], steps=1)).text()


def test_a_long_run_says_which_steps_its_tables_hold() -> None:
    cut = run([0, 1, 2, 3, *range(1936, 2000)], steps=2000)
    assert kept_steps(cut).startswith("Tables and medians cover the first 4 and the last 64 of 2,000 steps")
    assert of_run(cut).all() == [kept_steps(cut)]


def test_what_went_wrong_in_a_step_whose_rows_are_gone_is_told() -> None:
    counts = {"steps": 2000, "migrations": 6000, "failed": 3, "partial": 2, "fast_peak_bytes": 100 + (1 << 20)}
    cut = run([0, 1, 2, 3, *range(1936, 2000)], **counts)
    assert of_run(cut).serious == [
        "3 of 6,000 migrations failed.",
        "2 of 6,000 migrations moved only a part of their bytes.",
        "The fast tier held up to 1.00 MiB more than its budget.",
    ]
    assert worst(build_report(executed=cut))[:3] == of_run(cut).serious


def test_what_failed_under_an_earlier_plan_is_no_share_of_what_this_one_moved() -> None:
    assert of_run(run([0], steps=1, steps_before=9, migrations=1, failed=3)).serious == ["3 migrations failed."]


def test_what_the_kernel_placed_is_an_outcome() -> None:
    assert "The kernel placed 13 pages against the plan" in of_run(run([0], steps=1, kernel_placed_pages=13)).serious[0]


@pytest.mark.parametrize(("late", "places"), [(1, "at 1 place;"), (2, "at 2 places;")])
def test_late_promotions_are_counted_and_not_listed(late: int, places: str) -> None:
    first = TrialDecision(3, "h.1 forward", False, False, 30_000_000, 100_000_000, 10_000_000, 1_000_000)
    tried = replace(run([0], steps=1), trials=((0, first),) * late)
    (said,) = of_run(tried).all()
    assert said.startswith(f"Promotions came late {places}")


def test_what_was_decided_again_is_listed_among_the_events_by_step() -> None:
    first = TrialDecision(3, "h.1 forward", False, False, 30_000_000, 100_000_000, 10_000_000, 1_000_000)
    again = replace(first, waits=True, again=True, slower_ns=-10_000_000)
    told = replace(
        run([0], steps=1), trials=((1, first), (5, again)), events=((2, "a page stayed"), (7, "test and trial: x"))
    )
    *listed, first_tried = of_run(told).all()
    assert first_tried.startswith("Promotions came late at 1 place")
    assert [sentence.partition(":")[0] for sentence in listed] == ["Step 2", "Step 5", "Step 7"]
    assert listed[1] == (
        "Step 5: test and trial, tried again: migrations due before layer 3 come late: waiting takes 30.00 ms; without"
        " it the 100.00 ms to the next interval are 10.00 ms shorter; intervals of one kind differ by 1.00 ms by"
        " themselves;"
        " from now on it waits for them (h.1 forward)"
    )
    report = build_report(profile=None, plan=None, machine=None, executed=told)
    assert [event["step"] for event in report.values()["events"]] == [1, 2, 5, 7]
    assert "leaves the rest in slow memory (h.1 forward)" in report.values()["events"][0]["text"]
