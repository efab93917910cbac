"""What goes wrong while a plan is applied costs time: training stays bit-identical, and the report tells of it."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sentinel
import sentinel.session
from sentinel.core.errors import NativeError
from sentinel.migration.engine import Engine
from sentinel.migration.handover import Handover
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler.pages.trackers import TRACKERS
from sentinel.system import native
from tests import training
from tests.torch.case_parts import batch, mlp
from tests.training import BeforeStep, Trained, assert_same, fork_in_each_forward

pytestmark = [
    pytest.mark.needs("torch", "native", "compiler"),
    pytest.mark.filterwarnings("ignore:.*training goes on:RuntimeWarning"),
]
CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}[platform.machine()]
STEPS = 12
Data = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """OpenMP's threads are not in a forked child, which would wait for them for ever, on stock PyTorch too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_process() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for i in range(STEPS):
        yield batch(i)


def by_workers() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two workers, forked again every epoch, that is every second step."""
    rows = [batch(i) for i in range(2)]
    data = TensorDataset(torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows]))
    loader = DataLoader(data, batch_size=64, num_workers=2, multiprocessing_context="fork")
    while True:
        yield from loader


@pytest.fixture(autouse=True)
def _stock_allocation_afterwards() -> Iterator[None]:
    yield
    native.library().sn_system_fail(CLOCK_NANOSLEEP, 0, 0)
    if sentinel.active():
        sentinel.stop()


def train(
    data: Data = in_process,
    *,
    ours: bool = True,
    tracker: str = "ops",
    before_step: BeforeStep = lambda step, model: None,
    ends_by_itself: bool = False,
) -> Trained:
    torch.manual_seed(5)
    asked = {"fast": "30%", "slow": "emulated:cxl-asic-x8", "tracker": tracker} if ours else None
    return training.train(
        mlp(), data(), steps=STEPS, ours=asked, before_step=before_step, ends_by_itself=ends_by_itself
    )


def test_without_a_fault_nothing_is_told() -> None:
    ours = train()
    run = assert_same(train(ours=False), ours)
    assert not run.counters.failed
    assert not any("left" in sentence for _, sentence in run.events)


@pytest.mark.parametrize("nth", [1, 3, 11, 29])
def test_a_transfer_that_fails(nth: int) -> None:
    left: list[int] = []

    def fail(step: int, _model: nn.Module) -> None:
        if step == 4:
            native.library().sn_system_fail(CLOCK_NANOSLEEP, nth, errno.EIO)
        if step == STEPS - 1:
            left.append(native.library().sn_system_fail(CLOCK_NANOSLEEP, 0, 0))

    ours = train(before_step=fail)
    run = assert_same(train(ours=False), ours)
    assert left == [0]  # it came to that
    assert run.counters.failed == run.counters.stayed["EIO"] == 1
    assert ours.told("Input/output error")
    assert run.counters.overflow_bytes == 0


@pytest.mark.parametrize("by", ["os.fork", "multiprocessing"])
def test_a_child_forked_in_the_middle_of_a_migration(by: str) -> None:
    """From the third step on."""
    ended: list[int | None] = []

    def hook(step: int, model: nn.Module) -> None:
        if step == 3:
            fork_in_each_forward(model, by, ended)

    ours = train(before_step=hook)
    run = assert_same(train(ours=False), ours)
    assert ended == [0] * (STEPS - 3)
    assert run.counters.overflow_bytes == 0
    assert not run.counters.failed


def test_a_child_that_trains_on_by_itself_changes_nothing_here() -> None:
    """It forks with a plan applied, ticks, writes to every parameter and frees; the parent goes on as if alone."""
    ended: list[int] = []

    def fork(step: int, model: nn.Module) -> None:
        if step != 5:
            return
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
                for i in range(3):
                    inputs, labels = batch(i)
                    nn.functional.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
                os._exit(0)
            os._exit(1)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    ours = train(before_step=fork)
    assert_same(train(ours=False), ours)
    assert ended == [0]


@pytest.mark.parametrize(
    "tracker",
    ["pagemap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ops", *TRACKERS) if name != "pagemap")],
)
def test_workers_forked_again_every_epoch(tracker: str) -> None:
    try:
        ours = train(by_workers, tracker=tracker)
    except sentinel.CapabilityError as error:
        pytest.skip(f"needs tracker {tracker}: {error}")
    run = assert_same(train(by_workers, ours=False), ours)
    assert run.counters.overflow_bytes == 0
    assert not run.counters.failed


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_child_of_the_profiled_step_gets_a_consistent_private_copy(tracker: str) -> None:
    """The parent trains on before the child looks; what the child then writes, the parent never sees."""
    children: list[tuple[int, int]] = []

    def fork(step: int, model: nn.Module) -> None:
        if step == 2:  # the profiled step has written to every parameter: now the child may look
            for _, go in children:
                os.write(go, b"x")
        if step != 1:
            return
        expected = [parameter.detach().clone() for parameter in model.parameters()]
        wait, go = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            with contextlib.suppress(BaseException):
                os.close(go)  # so that it does not outlive a parent that never writes
                os.read(wait, 1)
                status = int(not all(map(torch.equal, expected, model.parameters())))
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.fill_(float("nan"))
            os._exit(status)
        children.append((child, go))

    try:
        ours = train(tracker=tracker, before_step=fork)
    except sentinel.CapabilityError as error:
        pytest.skip(f"needs tracker {tracker}: {error}")
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children] == [0]
    assert_same(train(ours=False), ours)


@pytest.mark.parametrize("ends_badly", [False, True])
def test_an_engine_that_breaks_ends_the_session_and_never_the_step(
    ends_badly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it breaks once more as it is ended: stock allocation is back, the step is as without us."""
    closed: list[Engine] = []
    close = Engine.restore

    def broken(*_: object) -> None:
        raise NativeError("sn_mover_submit", errno.ENOMEM)

    def restore(engine: Engine) -> None:
        close(engine)
        closed.append(engine)
        if ends_badly:
            broken()

    def break_it(step: int, _model: nn.Module) -> None:
        if step == 7:
            monkeypatch.setattr(Engine, "begin_layer", broken)
            monkeypatch.setattr(Engine, "restore", restore)

    with pytest.warns(RuntimeWarning, match="training goes on with stock allocation"):
        ours = train(before_step=break_it, ends_by_itself=True)
    stock = train(ours=False)
    assert stock.losses == ours.losses
    assert all(map(torch.equal, stock.parameters, ours.parameters))
    assert len(closed) == 1
    assert not sentinel.active()
    assert "The session ended by itself" in ours.text
    assert ("When the movers ended, some blocks could not be moved back" in ours.text) == ends_badly
    ManagedMemory.install().uninstall()  # ours is not in place any more


def test_without_threads_for_another_shape_what_had_moved_still_comes_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of a second shape cannot be made: that of the first gets back what it had handed over, and ends."""
    taken: list[Engine] = []
    bring_home = Engine.bring_home

    def spy(engine: Engine, given: Handover) -> None:
        bring_home(engine, given)
        taken.append(engine)

    def refuse(*_: object, **__: object) -> None:
        raise NativeError("sn_mover_create", errno.EAGAIN)

    monkeypatch.setattr(Engine, "bring_home", spy)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first: list[Engine] = []

    def run() -> None:
        for step in range(16):
            inputs, labels = batch(step)
            if step == 1:
                sentinel.start_profile(fast="1MiB", slow="emulated:cxl-asic-x8", tracker="ops")
            if step >= 10:  # the layer times of the first are settled
                inputs, labels = inputs[:20], labels[:20]
                monkeypatch.setattr("sentinel.migration.engine.NativeMover", refuse)
            if step == 9:
                session = sentinel.session.current()
                assert session is not None
                first.extend(bucket.engine for bucket in session.context.applying.buckets if bucket.engine is not None)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if step == 1:
                sentinel.end_profile()

    with sentinel.annotate(model, optimizer), pytest.warns(RuntimeWarning, match="sentinel has stopped"):
        run()
    assert not sentinel.active()
    assert len(first) == 1
    assert taken == first
