"""How busy the host was, from readings that are given and from a `/proc` that is made."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sentinel.system import host_load
from sentinel.system.host_load import (
    LEAST_NS,
    LEAST_TICKS,
    HostLoad,
    HostWatch,
    Processor,
    Reading,
    Spent,
    between,
    others_share,
    read,
    spent,
)
from tests.unit.made_proc import proc

BOTH = frozenset({0, 1})


def spent_of(ticks: int, busy: int, stolen: int, own: int | None, allowed: frozenset[int] = BOTH) -> Spent:
    """Of two processors, half each."""
    half = Processor(ticks // 2, busy // 2, stolen // 2)
    rest = Processor(ticks - half.ticks, busy - half.busy, stolen - half.stolen)
    return Spent({0: half, 1: rest}, own, allowed)


BEFORE = Reading(0, 10**9, 10**9, spent_of(1000, 600, 100, 400))


def after(ran_ns: int, waited_ns: int, ticks: int, stolen: int, others: int | None = None) -> Reading:
    """`others`: ticks that were not the job's; None if nobody tells."""
    own = None if others is None else 400 + ticks // 2
    busy = ticks // 2 + (others or 0)
    return Reading(
        2 * 10**9,
        10**9 + ran_ns,
        10**9 + waited_ns,
        spent_of(1000 + ticks, 600 + busy, 100 + stolen, own),
    )


@pytest.mark.parametrize(
    ("later", "waited", "stolen", "others", "busy", "by"),
    [
        (after(3 * 10**9, 10**9, 400, 20), 0.25, 0.05, None, 0.25, "waits"),
        (after(3 * 10**9, 0, 400, 100), 0.0, 0.25, None, 0.25, "waits"),
        (after(LEAST_NS - 2, 1, LEAST_TICKS, 0), None, 0.0, None, 0.0, "waits"),
        (after(LEAST_NS, 0, LEAST_TICKS - 1, 9), 0.0, None, None, 0.0, "waits"),
        (after(0, 0, 0, 0), None, None, None, None, None),  # a kernel that tells nothing
        (after(3 * 10**9, 10**9, 400, 0, others=8), 0.25, 0.0, 0.02, 0.02, "others"),  # the job's own threads had it
        (after(3 * 10**9, 0, 400, 0, others=80), 0.0, 0.0, 0.2, 0.2, "others"),
        (after(3 * 10**9, 10**9, 400, 60, others=8), 0.25, 0.15, 0.02, 0.15, "others"),
        (after(3 * 10**9, 10**9, 400, 0, others=-30), 0.25, 0.0, 0.0, 0.0, "others"),  # clocks are read one by one
        (after(LEAST_NS, LEAST_NS, LEAST_TICKS - 1, 0, others=0), 0.5, None, None, 0.5, "waits"),  # too short to tell
    ],
)
def test_a_host_is_judged_by_what_others_had_and_by_waits_where_nobody_tells(
    later: Reading, waited: float | None, stolen: float | None, others: float | None, busy: float | None, by: str | None
) -> None:
    found = between(BEFORE, later)
    assert found == HostLoad(2 * 10**9, waited, stolen, others)
    assert (found.busy_share, found.judged_by) == (busy, by)


def test_a_job_that_is_bound_to_few_processors_is_judged_by_those() -> None:
    """A rival on one of a hundred takes a hundredth of the host, and half of what such a job has."""
    idle, shared = Processor(1000, 0, 0), Processor(1000, 1000, 0)
    none = dict.fromkeys(range(100), Processor(0, 0, 0))
    first = Spent(none, 0, frozenset({7}))
    then = Spent({cpu: shared if cpu == 7 else idle for cpu in none}, 500, frozenset({7}))
    assert others_share(first, then) == 0.5
    assert others_share(first, then._replace(allowed=frozenset({7, 8}))) == 0.25
    free = first._replace(allowed=frozenset(none))
    assert others_share(free, then._replace(allowed=frozenset(none))) == 0.005
    crowd = Spent(dict.fromkeys(none, shared) | {7: idle}, 0, frozenset({7}))
    assert others_share(first, crowd) == 0.99  # they take memory bandwidth of a job that is bound elsewhere
    gone = then._replace(processors={cpu: each for cpu, each in then.processors.items() if cpu != 99})
    assert others_share(first, gone) == 0.5  # one was switched off


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_job_that_is_not_seen_tells_nothing_of_others(which: str) -> None:
    first, then = spent_of(0, 0, 0, 0), spent_of(400, 400, 0, 400)
    unseen = {"before": (first._replace(own_ticks=None), then), "after": (first, then._replace(own_ticks=None))}
    assert others_share(first, then) == 0.0
    assert others_share(*unseen[which]) is None
    assert others_share(first, first) is None


def test_a_reading_is_what_the_kernel_tells_of_the_thread_the_job_and_the_processors(tmp_path: Path) -> None:
    assert read(7, tmp_path)[1:] == (0, 0, Spent({}, None, frozenset()))
    (tmp_path / "proc/self/task/7").mkdir(parents=True)
    (tmp_path / "proc/self/task/7/schedstat").write_text("500 20 3\n")
    (tmp_path / "proc/stat").write_text(
        "cpu  20 2 10 140 4 0 6 18 8 8\ncpu3 10 1 5 70 2 0 3 9 4 4\ncpu12 1 1 1\nintr 9\n"
    )
    proc(tmp_path, os.getpid(), 1, (10, 5, 2, 1), "3")
    proc(tmp_path, 1 << 30, os.getpid(), (100, 0, 0, 0), "4-5")  # started by this one
    proc(tmp_path, (1 << 30) + 1, 1 << 30, (1000, 0, 0, 0), "3")  # and that has started this one
    proc(tmp_path, (1 << 30) + 2, 1, (10_000, 0, 0, 0), "0-63")  # another's
    found = read(7, tmp_path)
    assert found[1:3] == (500, 20)
    assert found.spent == Spent({3: Processor(100, 28, 9)}, 1118, frozenset({3, 4, 5}))  # guests' are part of these
    assert spent(12345, tmp_path).own_ticks is None


@pytest.mark.parametrize(("ranks", "starter"), [(1, False), (4, True)])
def test_ranks_of_one_job_are_not_others(ranks: int, starter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(os, "getppid", lambda: 4711)
    assert host_load.job() == (4711 if starter else os.getpid())
    monkeypatch.setattr(os, "getppid", lambda: 1)  # what has started it ended, or is in another namespace
    assert host_load.job() == os.getpid()


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
