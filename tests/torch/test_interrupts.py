"""An interrupt within a call of ours leaves nothing behind, and training goes on with the bits of stock."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.step_follower import StepFollower  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402
from sentinel.profiler import operators, record  # noqa: E402
from sentinel.profiler.pages import native_touch  # noqa: E402
from sentinel.profiler.pages.armed_tracker import ArmedTracker  # noqa: E402
from sentinel.profiler.record import StepRecorder  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.session import auto, current  # noqa: E402
from sentinel.session.applying import Applying  # noqa: E402
from sentinel.session.session import Session  # noqa: E402
from tests.processes import mapped_for_tensors  # noqa: E402
from tests.torch.bit_identity_cases import ASKED, Job, job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
WATCHED = {**ASKED, "tracker": "pagemap"}


@pytest.fixture
def tracked() -> None:
    from sentinel.profiler.pages import obstacle

    if (why := obstacle("pagemap")) is not None:
        pytest.skip(f"needs tracker pagemap: {why}")


def interrupted_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> list[str]:
    """The next call of `owner.name` ends with a KeyboardInterrupt, before it does anything or after it did all."""
    real: Callable[..., Any] = getattr(owner, name)
    came: list[str] = []

    def call(*given: Any, **named: Any) -> Any:
        if came:
            return real(*given, **named)
        came.append(name)
        if after:
            real(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, call)
    return came


def nothing_is_left() -> None:
    assert mapped_for_tensors() == []
    assert not operators.recording()
    assert RUNTIME.memory is None
    assert not sentinel.active()


def second_session(work: Job, first: int) -> list[float]:
    """Losses of the steps from `first` on, the session's end included."""
    sentinel.start_profile(**WATCHED)
    losses = [work.step(first)]
    sentinel.end_profile()
    losses += [work.step(i) for i in range(first + 1, first + 4)]
    assert sentinel.stop().steps.size
    return losses


POINTS = [
    (ArmedTracker, "start", True),
    (ArmedTracker, "stop", False),
    (ArmedTracker, "mark", True),
    (StepRecorder, "start", True),
    (StepRecorder, "stop", False),
    (ManagedMemory, "record", True),
    (ManagedMemory, "place", True),
]
# What begins or ends just before or after another point: another session of many seconds for a call or two.
NEXT_TO_ANOTHER = [(ArmedTracker, "stop"), (StepRecorder, "start"), (ManagedMemory, "record")]


def _point(owner: type, name: str, after: bool) -> Any:
    slow = [pytest.mark.slow] if (owner, name) in NEXT_TO_ANOTHER else []
    return pytest.param(owner, name, after, id=f"{owner.__name__}.{name}", marks=slow)


@pytest.mark.usefixtures("tracked")
@pytest.mark.parametrize(("owner", "name", "after"), [_point(*point) for point in POINTS])
def test_an_interrupt_in_a_tick_ends_the_session_and_a_second_one_runs(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    """The first step is provisional: the next whole one is recorded in the ticks of steps that the user trains on."""
    work, losses, cut = job(), [], []
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**WATCHED)
        losses.append(work.step(0))
        sentinel.end_profile()
        came = interrupted_once(monkeypatch, owner, name, after=after)
        for i in range(1, 6):
            try:
                losses.append(work.step(i))
            except KeyboardInterrupt:
                cut.append(i)
                nothing_is_left()
        assert came
        assert len(cut) == 1
        sentinel.stop()  # a user's call at the end of training is no error
        second_session(work, 6)
    nothing_is_left()


@pytest.mark.usefixtures("tracked")
@pytest.mark.parametrize("name", ["unback", "touch_stop", "unmap_at"])
@pytest.mark.parametrize("during", ["end_profile", pytest.param("stop", marks=pytest.mark.slow)])
def test_an_end_that_is_cut_short_goes_on_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch, name: str, during: str
) -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(8)]
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**WATCHED)
        losses = [work.step(0)]
        with monkeypatch.context() as patched:

            def interrupt(*_: object) -> None:  # in the call, and again as the session ends for it
                raise KeyboardInterrupt

            patched.setattr(native_touch, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                sentinel.stop() if during == "stop" else sentinel.end_profile()
        assert sentinel.active()  # it could not end
        losses += [work.step(i) for i in range(1, 4)]  # the first tick ends it
        nothing_is_left()
        losses += second_session(work, 4)
    assert losses == expected


def test_an_end_that_fails_is_tried_again_and_the_session_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(4)]
    sentinel.start_profile(work.models, work.optimizers, **ASKED)
    session = current()
    assert session is not None
    real, left = ManagedMemory.uninstall, [1, 2, 3]

    def fail(memory: ManagedMemory) -> None:
        if left:
            left.pop()
            raise sentinel.NativeError("sn_pass_through", 12)
        real(memory)

    memory = session.context.memory
    undo = tuple(partial(fail, memory) if each == memory.uninstall else each for each in session._to_end)
    monkeypatch.setattr(session, "_to_end", undo)
    with sentinel.annotate(work.models, work.optimizers):
        with pytest.warns(RuntimeWarning, match="will try again.*sn_pass_through"):
            sentinel.stop()
        assert sentinel.active()
        assert [work.step(i) for i in range(4)] == expected
    nothing_is_left()


@pytest.mark.usefixtures("tracked")
def test_an_interrupt_after_start_profile_has_done_all_leaves_a_session_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs though the call raised; it can be used, and can be ended."""
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(4)]
    with sentinel.annotate(work.models, work.optimizers):
        losses = [work.step(0)]
        assert interrupted_once(monkeypatch, Session, "open", after=True) == []
        with pytest.raises(KeyboardInterrupt):
            sentinel.start_profile(**WATCHED)
        assert sentinel.active()
        losses.append(work.step(1))
        sentinel.end_profile()
        losses += [work.step(i) for i in range(2, 4)]
        sentinel.stop()
    nothing_is_left()
    assert losses == expected


def test_an_interrupt_while_the_cost_of_recording_is_tried_leaves_grad_mode_and_operators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record._operator_ns.cache_clear()
    came = interrupted_once(monkeypatch, operators, "start", after=True)
    work = job()
    with pytest.raises(KeyboardInterrupt):
        sentinel.start_profile(work.models, work.optimizers, **ASKED)
    assert came
    assert torch.is_grad_enabled()
    nothing_is_left()


class Preempted(Exception):
    pass


@pytest.fixture
def handled() -> Iterator[None]:
    """SIGUSR1 raises Preempted, as a scheduler's preemption or a time limit may."""

    def preempted(_number: int, _frame: object) -> None:
        raise Preempted

    before = signal.signal(signal.SIGUSR1, preempted)
    yield
    signal.signal(signal.SIGUSR1, before)


def signalled_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The signal comes as `owner.name` is called next."""
    real: Callable[..., Any] = getattr(owner, name)
    came: list[str] = []

    def call(*given: Any, **named: Any) -> Any:
        if not came:
            came.append(name)
            signal.raise_signal(signal.SIGUSR1)
        return real(*given, **named)

    monkeypatch.setattr(owner, name, call)
    return came


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Applying, "tick"), (StepFollower, "boundary"), (ManagedMemory, "uninstall"), (Session, "_end_profiling")],
    ids=["tick", "boundary", "end", "end_profile"],
)
def test_what_a_handler_of_the_program_raises_within_a_call_of_ours_reaches_the_loop(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    work = job()
    came = signalled_once(monkeypatch, owner, name)
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**ASKED)
        with pytest.raises(Preempted):
            train_with_a_session(work)
    assert came
    if sentinel.active():
        sentinel.stop()  # as after Ctrl-C: the next call goes on with an end that was cut short
    nothing_is_left()


def train_on(work: Job) -> None:
    for i in range(12):
        work.step(i)


def train_with_a_session(work: Job) -> None:
    work.step(0)
    sentinel.end_profile()
    for i in range(1, 4):
        work.step(i)
    sentinel.stop()


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("name", ["start_profile", "end_profile"])
def test_a_handler_raises_into_the_loop_that_was_found_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    work = job()
    came = signalled_once(monkeypatch, auto.session, name)
    with sentinel.placing(**ASKED), pytest.raises(Preempted):
        train_on(work)
    assert came
    nothing_is_left()
