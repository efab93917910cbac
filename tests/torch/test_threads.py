"""A session belongs to the thread that began it; another one may end it once that has ended."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.session.owner_thread import OwnerThread  # noqa: E402
from tests.torch.bit_identity_cases import ASKED, Job, job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def in_a_thread(work: Callable[[], object]) -> None:
    """`work`, done in a thread that has ended then; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def train(work: Job, steps: range) -> list[float]:
    losses = []
    for i in steps:
        if i == steps.start:
            sentinel.start_profile(**ASKED)
        losses.append(work.step(i))
        if i == steps.start:
            sentinel.end_profile()
    return losses


def test_what_a_thread_began_is_ended_by_another_when_it_is_gone() -> None:
    stock = job()
    expected = [stock.step(i) for i in range(8)]
    work, losses = job(), []
    with sentinel.annotate(work.models, work.optimizers):
        in_a_thread(lambda: losses.extend(train(work, range(4))))
        assert sentinel.active()
        assert sentinel.stop().kind == "executed"
        assert not sentinel.active()
        losses += train(work, range(4, 8))  # this thread's allocations are managed now
        assert sentinel.report().headline["steps"]
    assert losses == expected


def test_a_thread_that_failed_in_the_profiled_step_leaves_nothing_behind() -> None:
    work = job()

    def fail() -> None:
        sentinel.start_profile(**ASKED)
        work.step(0)
        raise ZeroDivisionError

    with sentinel.annotate(work.models, work.optimizers):
        with pytest.raises(ZeroDivisionError):
            in_a_thread(fail)
        sentinel.stop()
        train(work, range(4))
        assert sentinel.stop().kind == "executed"


def test_while_its_thread_lives_no_other_ends_a_session() -> None:
    work = job()
    refused: list[str] = []

    def try_to_end() -> None:
        for call in (sentinel.stop, sentinel.end_profile):
            with pytest.raises(sentinel.UsageError, match=r"the session belongs to thread 'MainThread'") as told:
                call()
            refused.append(str(told.value))

    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(3))
        in_a_thread(try_to_end)
        assert [text.split(":")[0] for text in refused] == ["stop()", "end_profile()"]
        assert sentinel.active()
        work.step(3)
        assert sentinel.stop().kind == "executed"


def test_a_step_that_another_thread_trains_is_refused_by_name() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**ASKED)
        in_a_thread(lambda: work.step(0))
        with pytest.raises(sentinel.UsageError, match=r"ticks .* came from other threads.*in the thread that trains"):
            sentinel.end_profile()
        assert not sentinel.active()


def test_ticks_of_other_threads_shift_nothing_and_are_told() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(3))
        for i in range(3, 6):
            in_a_thread(sentinel.add_layer)
            work.step(i)
        sentinel.stop()
    report = sentinel.report()
    assert "3 ticks came from other threads" in report.text()
    assert "did not tick as planned" not in report.text()


PROGRAM = """
import threading, torch, sentinel
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sentinel.annotate(model, optimizer)

def train():
    for i in range(4):
        if i == 1:
            sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
        model(torch.ones(64, 64)).sum().backward()
        optimizer.step()
        if i == 1:
            sentinel.end_profile()

thread = threading.Thread(target=train)
thread.start()
thread.join()
print(sentinel.active())
"""


def test_a_program_whose_thread_never_stopped_its_session_ends_without_a_word(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = [line for line in done.stderr.splitlines() if not line.endswith(" so far")]
    assert (done.returncode, done.stdout, said) == (0, "True\n", [])


def test_a_later_thread_under_the_same_identifier_is_not_the_owner() -> None:
    """The C library gives the handle of a thread that has ended to the next one."""
    made: list[tuple[OwnerThread, int]] = []
    in_a_thread(lambda: made.append((OwnerThread(), threading.get_ident())))
    owner, ident = made[0]
    accepted: list[bool] = []

    def tick() -> None:
        if threading.get_ident() == ident:
            accepted.append(owner.accepts_tick())

    for _ in range(100):
        in_a_thread(tick)
        if accepted:
            break
    assert accepted == [False]
    assert owner.foreign_ticks == 1
    assert not owner.away  # it has ended


def test_an_owner_that_python_did_not_start_has_ended_when_its_thread_has() -> None:
    """`threading` counts a thread of C++ as alive for ever: nobody could stop its session."""
    made: list[OwnerThread] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def run(_: object) -> None:
        made.append(OwnerThread())
        assert not made[0].away
        begun.set()
        go_on.wait(timeout=600)

    begun, go_on = threading.Event(), threading.Event()
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, run, None) == 0
    assert begun.wait(timeout=600)
    assert made[0].away
    go_on.set()
    assert libc.pthread_join(thread, None) == 0
    assert not made[0].away
