"""The native mover seen from Python; its own tests (kernel_profiler/tests/test_mover*.cpp) have the rest."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from sentinel.core.errors import NativeError
from sentinel.migration.clock import sleep_until
from sentinel.migration.mover import Held, NativeMover, Outcome
from sentinel.tiers.tier import FAST, MOST_TIERS, NODE, Job
from tests.processes import until

pytestmark = pytest.mark.needs("native")

MS = 1_000_000
UP, DOWN = (1, 0), (0, 1)  # source and target


@pytest.fixture
def mover() -> Iterator[NativeMover]:
    made = NativeMover(100)
    yield made
    made.close()


def test_a_mover_that_was_given_nothing_has_done_nothing(mover: NativeMover) -> None:
    assert mover.ended() == 0
    assert mover.results() == []
    assert mover.errors() == {}
    assert mover.held() == Held((0,) * MOST_TIERS, (0,) * MOST_TIERS, *[0] * 7)


def test_more_results_than_fit_a_batch_come_all_in_order(mover: NativeMover) -> None:
    jobs = [mover.submit(Job(*DOWN, 0, ())) for _ in range(211)]
    assert mover.wait(jobs[-1])
    assert [moved.job for moved in mover.results()] == jobs
    assert mover.ended() == 211


def test_a_job_takes_its_time_and_both_sides_hold_it_meanwhile(mover: NativeMover) -> None:
    mover.hold(1, 60)
    job = mover.submit(Job(*UP, 60, (0, 60), duration_ns=30 * MS))
    until(lambda: mover.held().in_flight_bytes or mover.ended(), 2e-4)
    if not mover.ended():
        held = mover.held()
        assert held.bytes_in[:2] == (60, 60)
    assert mover.wait(job)
    (moved,) = mover.results()
    assert moved.outcome is Outcome.DONE
    assert moved.stop_ns - moved.start_ns == 30 * MS
    held = mover.held()
    assert (held.bytes_in[:2], held.high_bytes_in[FAST]) == ((60, 0), 60)


def test_marks_begin_anew_from_what_is_held_whoever_changed_it() -> None:
    mover = NativeMover(100, tiers=3)
    assert mover.restart_high_bytes() == ((0, 0, 0), 0)
    mover.force(60)
    mover.hold(1, 30)
    assert [mover.restart_high_bytes() for _ in range(3)] == [((60, 30, 0), 30)] * 3
    mover.release(20)
    assert mover.held(restart=True).fast_bytes == 40
    assert [mover.restart_high_bytes() for _ in range(2)] == [((40, 30, 0), 30)] * 2
    assert mover.wait(mover.submit(Job(*UP, 30, (0, 30))))
    assert [mover.restart_high_bytes() for _ in range(2)] == [((70, 30, 0), 30), ((70, 0, 0), 0)]
    mover.close()
    with pytest.raises(NativeError):
        mover.restart_high_bytes()


def test_a_promotion_that_was_dropped_never_ran(mover: NativeMover) -> None:
    assert mover.reserve(100)
    job = mover.submit(Job(*UP, 10, (0, 10)))
    assert not mover.wait(job)
    assert mover.cancel(job)
    assert not mover.cancel(job)
    (moved,) = mover.results()
    assert moved.outcome is Outcome.CANCELLED
    assert moved.start_ns == moved.moved_bytes == 0


@pytest.mark.parametrize("node", [1000, 1 << 20])
def test_pages_for_a_node_that_is_not_there_stay_and_say_why(mover: NativeMover, node: int) -> None:
    import numpy as np

    memory = np.ones(3 * 4096, np.uint8)
    first = -(-memory.ctypes.data // 4096) * 4096
    mover.set_capacity(1 << 20)
    assert mover.reserve(8192)
    job = mover.submit(Job(*DOWN, 8192, (8192,), kind=NODE, node=node, spans=[(first, 8192)]))
    assert mover.wait(job)
    (moved,) = mover.results()
    assert moved.outcome is Outcome.FAILED
    assert moved.errno in (errno.ENODEV, errno.EINVAL)
    assert moved.held[FAST] == mover.held().fast_bytes == 8192
    assert sum(mover.errors().values()) == 2
    assert memory.all()


def test_force_is_counted_where_reserve_is_refused(mover: NativeMover) -> None:
    assert mover.reserve(90)
    assert not mover.reserve(20)
    mover.force(20)
    held = mover.held()
    assert (held.fast_bytes, held.overflow_bytes, held.overflows) == (110, 10, 1)
    mover.release(110)
    with pytest.raises(NativeError, match="sn_mover_release"):
        mover.release(1)


def test_room_is_taken_at_once_or_not_at_all(mover: NativeMover) -> None:
    capacity = 100
    assert mover.take(60)
    mover.submit(Job(*DOWN, 60, (60,), duration_ns=3_600_000 * MS))  # would free it, in an hour
    assert not mover.take(capacity)
    assert mover.held().fast_bytes == 60
    assert mover.take(40)
    assert not mover.take(1)
    assert mover.held().fast_bytes == capacity


def test_a_wait_lets_signals_through(mover: NativeMover) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    def rung(wait: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        wait()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        job = mover.submit(Job(*UP, 10, (0, 10), duration_ns=3_600_000 * MS))
        with pytest.raises(Alarm):
            rung(lambda: mover.wait(job))
        with pytest.raises(Alarm):
            rung(lambda: sleep_until(time.monotonic_ns() + 3_600_000 * MS))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_closed_mover_says_so(mover: NativeMover) -> None:
    mover.close()
    mover.close()
    assert mover.ended() == 0
    with pytest.raises(NativeError, match="was closed"):
        mover.held()


def test_a_child_finds_it_inert_and_the_parent_goes_on(mover: NativeMover) -> None:
    job = mover.submit(Job(*UP, 10, (0, 10), duration_ns=20 * MS))
    child = os.fork()
    if child == 0:
        try:
            mover.wait(job)
        except NativeError as error:
            mover.close()
            os._exit(0 if error.errno == errno.ECHILD else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert mover.wait(job)


def test_a_sleep_is_never_short() -> None:
    for nap in (0, 1_000, 50_000, 300_000, 2 * MS):
        deadline = time.monotonic_ns() + nap
        sleep_until(deadline)
        assert time.monotonic_ns() >= deadline


NO_MEMORY = """
from array import array
import errno, resource
from sentinel.migration.mover import NativeMover
from sentinel.migration.mover_order import _ORDER
from sentinel.tiers.tier import Job

mover = NativeMover(100)
count = 1 << 22
spans = array("Q", bytes(16 * count))
order = _ORDER.pack(*[0] * 12, spans.buffer_info()[0], count, *[0] * 5, 1, 1, 0, 0)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20),) * 2)
print(mover._call["sn_mover_submit_all"](mover._handle, order, 1) == -errno.ENOMEM)
job = mover.submit(Job(0, 1, 0, ()))
print(job, mover.wait(job), [moved.job for moved in mover.results()])
"""


def test_a_job_that_address_space_does_not_suffice_for_is_refused_and_the_mover_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["True", "1 True [1]"]), done.stderr
