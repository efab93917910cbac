"""Which steps are audited and measured, and what of them when another plan takes over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.executed import observer
from sentinel.executed.observer import StepObserver, Window
from sentinel.system.host_load import Reading, Spent

LAYERS = 3


class CountingAudit:
    """Counts the layers that it is told of, by the plan it was made for."""

    looked: list[str]

    def __init__(self, plan: object, machine: object, ranges: object) -> None:
        self._plan = str(plan)

    def after(self, layer: int) -> None:
        """See Audit."""
        CountingAudit.looked.append(f"{self._plan}:{layer}")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[StepObserver]:
    monkeypatch.setattr(observer, "Audit", CountingAudit)
    monkeypatch.setattr(observer, "node_free_bytes", lambda node: 1 << 20)
    CountingAudit.looked = []
    made = StepObserver(Window(2, 1), 0, lambda: None, lambda: None)
    yield made
    made._entered.close()  # or what it watches operators with would watch those of other tests


def step(watched: StepObserver) -> None:
    watched.step_began()
    for layer in range(LAYERS):
        watched.layer_began(layer)
    watched.step_ended()


def takes_over(watched: StepObserver, plan: str) -> None:
    watched.plan_applied(plan, None, None)  # type: ignore[arg-type]


def of(plan: str) -> list[str]:
    return [f"{plan}:{layer}" for layer in range(LAYERS)]


def test_what_tensors_have_is_told_of_each_layer_of_the_second_measured_step(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    had = iter(range(100))
    monkeypatch.setattr(observer, "node_free_bytes", lambda node: 1 << 20)
    made = StepObserver(Window(1, 3), 0, lambda: None, lambda: None)
    request.addfinalizer(made._entered.close)
    monkeypatch.setattr(made._touches.room, "nbytes", lambda node: next(had))
    step(made)
    assert made.seen.tensor_bytes == []
    step(made)
    assert made.seen.tensor_bytes == [0, 1, 2]
    made.step_began()
    made.layer_began(0)
    made.layer_began(1)  # a step that is cut short
    step(made)
    assert made.seen.tensor_bytes == [4, 5, 6]
    made._touches.room.add(np.arange(3))
    step(made)
    assert made.seen.measured_steps == 3
    assert made.finish().tensor_bytes == [4, 5, 6]
    assert (next(had), made._touches.room._added) == (7, [])  # it is not asked any more, and keeps nothing


def test_how_busy_the_host_was_is_told_of_the_steps_whose_times_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ms, unknown = 1_000_000, Spent({}, None, frozenset())
    ran, waited = (10 * ms, 30 * ms, 70 * ms), (0, 0, 40 * ms)
    readings = iter([Reading(0, *each, unknown) for each in zip(ran, waited, strict=True)])
    monkeypatch.setattr(observer, "node_free_bytes", lambda node: 1 << 20)
    monkeypatch.setattr(observer.host_load, "read", lambda _: next(readings))
    made = StepObserver(Window(4, 1), 0, lambda: None, lambda: None)
    shares = []
    for _ in range(4):
        step(made)
        shares.append(made.seen.busy_share)
    made._entered.close()
    assert len(made.seen.unwatched_steps_ns) == 2
    assert shares == [None, 0.0, 0.4, 0.4]
    assert (made.seen.waited_share, made.seen.judged_by) == (0.4, "waits")


def test_the_last_step_of_warm_up_and_the_measured_ones_are_audited(watched: StepObserver) -> None:
    takes_over(watched, "a")
    for _ in range(3):
        step(watched)
    assert watched.seen.measured_steps == 1
    assert CountingAudit.looked == of("a") * 2


def test_a_plan_that_takes_over_while_audited_is_audited_from_then_on(watched: StepObserver) -> None:
    takes_over(watched, "a")
    step(watched)
    step(watched)
    takes_over(watched, "b")
    step(watched)
    assert CountingAudit.looked == of("a") + of("b")


def test_without_a_plan_there_is_no_audit(watched: StepObserver) -> None:
    for _ in range(3):
        step(watched)
    assert CountingAudit.looked == []
    assert watched.finish().audit is None


def test_a_plan_that_comes_late_is_audited_all_the_same(watched: StepObserver) -> None:
    step(watched)
    step(watched)
    takes_over(watched, "late")
    step(watched)
    assert CountingAudit.looked == of("late")


def test_what_is_asked_at_steps_is_asked_as_the_first_begins_and_as_each_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what moved before the first step is no part of any."""
    asked: list[int] = []
    monkeypatch.setattr(observer, "node_free_bytes", lambda node: 1 << 20)
    made = StepObserver(Window(9, 1), 0, lambda: None, lambda: asked.append(made.seen.steps))
    made.step_began()  # and is cut short
    step(made)
    step(made)
    made.step_began()
    made._entered.close()
    assert asked == [0, 0, 1]


def test_a_step_that_is_cut_short_is_not_counted(watched: StepObserver) -> None:
    takes_over(watched, "a")
    step(watched)
    watched.step_began()
    watched.layer_began(0)
    watched.layer_began(1)
    step(watched)
    assert watched.seen.steps == 2
    assert CountingAudit.looked == ["a:0", *of("a")]
