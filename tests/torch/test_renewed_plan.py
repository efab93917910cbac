"""Another plan for the same steps: the engine that carries it out is there before the one before it ends."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.errors import NativeError  # noqa: E402
from sentinel.migration.engine import Engine  # noqa: E402
from sentinel.session import applying, current, planning  # noqa: E402
from sentinel.session.applying_plans import REFINE_STEPS, ApplyingPlans  # noqa: E402
from tests.torch.bit_identity_cases import job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
STEPS = 3 + REFINE_STEPS + 4


@pytest.mark.parametrize("fails", [False, True])
def test_a_plan_that_cannot_take_over_leaves_the_present_one_serving(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(STEPS)]
    made: list[Engine] = []
    serving: list[bool] = []  # as each engine is made: whether the one before it still has its movers

    def making(*arguments: Any, **more: Any) -> Engine:
        serving.append(bool(made) and made[-1]._mover.closed is False)
        if fails and made:
            raise NativeError("sn_mover_create", errno.EAGAIN)
        made.append(Engine(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(applying, "Engine", making)
    monkeypatch.setattr(planning.Refined, "is_better", lambda self, flow: True)  # whatever was found
    losses = []
    with sentinel.annotate(work.models, work.optimizers):
        for i in range(STEPS):
            if i == 0:
                sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
            losses.append(work.step(i))
            if i == 0:
                sentinel.end_profile()
    session = current()
    assert session is not None
    assert isinstance(session.state, ApplyingPlans)
    assert serving == [False, True]
    run = sentinel.stop()
    assert losses == expected
    assert run.steps["in_step"].all()
    after = run.counters.steps
    assert run.counters.steps_before == (0 if fails else REFINE_STEPS)
    assert after > (REFINE_STEPS if fails else 0)
    notes = " / ".join(session.notes)
    assert ("keeps its plan: sn_mover_create" in notes) == fails
    assert ("planned again after" in notes) == (not fails)


def test_a_plan_is_renewed_though_not_all_blocks_of_the_one_before_come_home(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(STEPS)]
    restored: list[Engine] = []
    restore = Engine.restore

    def restoring(engine: Engine) -> None:
        restore(engine)
        restored.append(engine)
        if len(restored) == 1:
            raise NativeError("mbind", errno.ENOMEM)

    monkeypatch.setattr(Engine, "restore", restoring)
    monkeypatch.setattr(planning.Refined, "is_better", lambda self, flow: True)
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
        losses = [work.step(0)]
        sentinel.end_profile()
        losses += [work.step(i) for i in range(1, STEPS)]
    run = sentinel.stop()
    assert losses == expected
    assert run.counters.steps_before == REFINE_STEPS
    session = current()
    assert session is not None
    assert sum("some blocks could not be moved back: mbind" in note for note in session.notes) == 1
    assert sum("planned again after" in note for note in session.notes) == 1
    assert not any("keeps its plan" in note for note in session.notes)


def test_a_report_in_another_thread_leaves_the_plan_that_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    work = job()
    searching, taken = threading.Event(), threading.Event()
    bounded = planning.Planning.bounded

    def slow(self: planning.Planning, flow: planning.Dataflow) -> planning.Dataflow:
        found = bounded(self, flow)
        searching.set()
        taken.wait(60)
        return found

    def report() -> None:
        drawn.append(sentinel.report())
        searching.set()

    monkeypatch.setattr(planning.Planning, "bounded", slow)
    monkeypatch.setattr(planning.Refined, "is_better", lambda self, flow: True)
    drawn: list[Any] = []
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
        work.step(0)
        sentinel.end_profile()
        work.step(1)
        other = threading.Thread(target=report)
        other.start()
        assert searching.wait(60)
        for i in range(2, STEPS):
            work.step(i)
    taken.set()
    other.join()
    sentinel.stop()
    assert drawn[0].plan is not None
    drawn = [sentinel.report()]
    assert any("planned again after" in note for note in drawn[0].setup.notes)
    assert drawn[0].plan.bound_step_ns is not None


def test_a_bound_that_is_loose_is_told_of_its_own_plan_only(monkeypatch: pytest.MonkeyPatch) -> None:
    work, found = job(), iter(["the first", ""])
    bound = planning.bound
    monkeypatch.setattr(planning, "bound", lambda *a, **named: replace(bound(*a, **named), loose=next(found)))
    monkeypatch.setattr(planning.Refined, "is_better", lambda self, flow: True)
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
        work.step(0)
        sentinel.end_profile()
        work.step(1)
        assert "the bound is loose: the first" in sentinel.report().setup.notes
        for i in range(2, STEPS):
            work.step(i)
    sentinel.stop()
    assert not any("loose" in note for note in sentinel.report().setup.notes)
