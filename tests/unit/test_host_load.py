"""How busy the host was, from readings that are given."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sentinel.system import host_load
from sentinel.system.host_load import LEAST_NS, LEAST_TICKS, HostLoad, HostWatch, Reading, between, read

BEFORE = Reading(0, 0, 10**9, 10**9, 1000, 100)


def after(ran_ns: int, waited_ns: int, ticks: int, stolen: int) -> Reading:
    return Reading(3 * 10**9, 2 * 10**9, 10**9 + ran_ns, 10**9 + waited_ns, 1000 + ticks, 100 + stolen)


@pytest.mark.parametrize(
    ("later", "waited", "stolen", "busy"),
    [
        (after(3 * 10**9, 10**9, 400, 20), 0.25, 0.05, 0.25),
        (after(3 * 10**9, 0, 400, 100), 0.0, 0.25, 0.25),
        (after(LEAST_NS - 2, 1, LEAST_TICKS, 0), None, 0.0, 0.0),
        (after(LEAST_NS, 0, LEAST_TICKS - 1, 9), 0.0, None, 0.0),
        (after(0, 0, 0, 0), None, None, None),  # a kernel that tells nothing
    ],
)
def test_shares_are_of_what_was_wanted_and_of_all_processors(
    later: Reading, waited: float | None, stolen: float | None, busy: float | None
) -> None:
    found = between(BEFORE, later)
    assert found == HostLoad(3 * 10**9, 2 * 10**9, waited, stolen)
    assert found.busy_share == busy


def test_a_reading_is_what_the_kernel_tells_of_the_thread_and_the_processors(tmp_path: Path) -> None:
    assert read(7, tmp_path)[2:] == (0, 0, 0, 0)
    (tmp_path / "proc/self/task/7").mkdir(parents=True)
    (tmp_path / "proc/self/task/7/schedstat").write_text("500 20 3\n")
    (tmp_path / "proc/stat").write_text("cpu  10 1 5 70 2 0 3 9 4 4\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert read(7, tmp_path)[2:] == (500, 20, 100, 9)  # time of guests is part of the first two


def test_a_phase_is_what_lies_between_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([BEFORE, after(3 * 10**9, 10**9, 400, 0), after(4 * 10**9, 10**9, 400, 0)])
    threads: list[int] = []

    def given(thread: int) -> Reading:
        threads.append(thread)
        return next(told)

    monkeypatch.setattr(host_load, "read", given)
    watch = HostWatch()
    watch.end("applied")
    assert watch.load("applied") is None
    watch.begin("applied")
    watch.begin("applied")  # it began before
    so_far = watch.load("applied")
    assert so_far is not None
    assert so_far.waited_share == 0.25
    watch.end("applied")
    whole = watch.load("applied")
    assert whole is not None
    assert whole.waited_share == 0.2
    watch.end("applied")
    assert watch.load("applied") == whole
    assert set(threads) == {threading.get_native_id()}


def test_of_steps_that_are_profiled_the_one_counts_that_the_first_plan_is_made_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where optimizer state was born in the first one."""
    first, second = after(3 * 10**9, 10**9, 400, 0), after(6 * 10**9, 10**9, 400, 0)
    told = iter([BEFORE, first, first, second, second])
    monkeypatch.setattr(host_load, "read", lambda _thread: next(told))
    watch = HostWatch()
    for begin in (lambda: watch.begin("profiled"), watch.profile_again):
        begin()
        watch.end("profiled")
    found = watch.load("profiled")
    assert found is not None
    assert found.waited_share == 0.0
    watch.begin("applied")
    watch.profile_again()  # for another shape
    watch.end("profiled")
    assert watch.load("profiled") == found
