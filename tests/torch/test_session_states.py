"""The states that a session goes through, each an object with its own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel import files  # noqa: E402
from sentinel.core.layer_cycle import ROUNDS  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.session.applying_plans import ApplyingPlans  # noqa: E402
from sentinel.session.context import SessionContext  # noqa: E402
from sentinel.session.profiling import STATE_WAS_BORN, Profiling  # noqa: E402
from sentinel.session.request import Request  # noqa: E402
from sentinel.session.saved_plan import CheckingSavedPlan  # noqa: E402
from sentinel.session.session import Session  # noqa: E402
from sentinel.session.state import Over  # noqa: E402
from sentinel.session.training_job import TrainingJob  # noqa: E402
from sentinel.session.whole_step import MOST_ROUNDS, RecordingStep, WaitingForStep  # noqa: E402
from sentinel.system import native  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")

LAYERS = 4


class Watched(Session):
    """Keeps the names of its states, in order."""

    seen: list[str]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            entered = value.name if isinstance(value, Over) else type(value).__name__
            if not hasattr(self, "seen"):
                super().__setattr__("seen", [])
            if self.seen[-1:] != [entered]:
                self.seen.append(entered)
        super().__setattr__(name, value)


def states(order: list[tuple[int, ...]], rows: list[int] | None = None, **asked: Any) -> Watched:
    """A session that lives through steps which go through these layers each, with so many rows of input."""
    torch.manual_seed(3)
    layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(LAYERS))
    optimizer = torch.optim.AdamW(layers.parameters())
    request = Request(**{"fast": "40%", "slow": "emulated:cxl-asic-x8", "tracker": "ops", **asked})
    session = Watched(request, [], [])
    annotated = sentinel.annotate(layers, optimizer)
    session.open()
    try:
        for i, step in enumerate(order):
            x = torch.ones((rows or [64] * len(order))[i], 32)
            for layer in step:
                x = torch.relu(layers[layer](x))
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if i == 0 and session.profiling:
                session.end_profile()
        session.stop()
    finally:
        if sentinel.active():
            session.stop()
        annotated.remove()
    return session


ALL = tuple(range(LAYERS))
PROFILED = ["ENDED", Profiling.__name__, WaitingForStep.__name__, RecordingStep.__name__, ApplyingPlans.__name__]


def test_optimizer_state_is_born_so_a_whole_step_is_waited_for_recorded_and_applied() -> None:
    session = states([ALL] * 6)
    assert session.seen == [*PROFILED, "ENDING", "ENDED"]
    assert STATE_WAS_BORN in session.notes
    assert isinstance(session.context, SessionContext)
    assert session.context.flow.plan is session.plan


def test_a_new_shape_is_recorded_between_applied_steps() -> None:
    session = states([ALL] * 14, rows=[64] * 5 + [96] * 9)
    assert session.seen == [*PROFILED, "RecordingStep", "ApplyingPlans", "ENDING", "ENDED"]
    assert len(session.context.applying.buckets) == 2


def test_a_new_cycle_is_waited_for_and_recorded() -> None:
    session = states([ALL] * 5 + [(0, 2, 3)] * (ROUNDS + 5))
    assert session.seen == [*PROFILED, "WaitingForStep", "RecordingStep", "ApplyingPlans", "ENDING", "ENDED"]


FEW = (1, 2, 3)
"""Without the layer that each profiled step begins with."""


def test_a_step_that_does_not_end_is_recorded_no_longer_and_what_comes_instead_is_profiled() -> None:
    session = states([ALL] * 2 + [FEW] * (3 * MOST_ROUNDS))
    assert session.seen == [*PROFILED[:-1], "WaitingForStep", "RecordingStep", "ApplyingPlans", "ENDING", "ENDED"]
    assert session.context.follower.n_changes == 1
    assert session.plan is not None
    assert {layer.name for layer in session.plan.layers if layer.phase == "forward"} == set("123")


def test_a_step_of_a_new_shape_that_does_not_end_takes_no_plan_away() -> None:
    session = states([ALL] * 7 + [FEW] * (2 * ROUNDS), rows=[64] * 5 + [96] * (2 * ROUNDS + 2))
    begun = [*PROFILED, "RecordingStep", "ApplyingPlans"]
    assert session.seen == [*begun, "WaitingForStep", "RecordingStep", "ApplyingPlans", "ENDING", "ENDED"]
    assert session.context.follower.n_changes == 1


def test_a_shape_for_which_there_is_no_room_takes_no_plan_away() -> None:
    session = states([ALL] * 20, rows=[64] * 8 + [1 << 14, 64] * 6, fast="1MiB", slow="emulated:nvme-gen4")
    assert session.seen[:7] == [*PROFILED, "RecordingStep", "ApplyingPlans"]
    assert session.seen[-3:] == ["ApplyingPlans", "ENDING", "ENDED"]
    assert any("the present plans go on" in note and "needs" in note for note in session.notes)
    assert len(session.context.applying.buckets) == 1


def test_where_the_profiled_step_begins_as_no_other_does_another_one_is_profiled() -> None:
    """The optimizer's state is born in it, so another one is waited for, which never begins as it did."""
    session = states([ALL] + [FEW] * (ROUNDS + 5))
    assert session.seen == [*PROFILED, "ENDING", "ENDED"]
    assert session.plan is not None
    assert {layer.name for layer in session.plan.layers if layer.phase == "forward"} == set("123")


def test_nothing_is_logged_while_a_step_is_waited_for_that_does_not_come() -> None:
    session = replaying()
    replay(session, ["x", "y"])
    session.context.job.state_was_born = lambda: True  # type: ignore[method-assign]
    session.end_profile()
    logged = []
    for number in range(200):
        replay(session, [f"{number}"])
        logged.append(native.library().sn_log_count())
    assert isinstance(session.state, WaitingForStep)
    session.stop()
    assert logged[1] > logged[0]  # negative control: at first there may still be a step
    assert logged[-1] == logged[len(logged) // 2]


def replay(session: Session, ticks: Sequence[str]) -> None:
    """Layers end with these ticks, and no optimizer steps."""
    for name in ticks:
        held = torch.ones(1 << 18)
        session.tick(name, "forward", "annotate")
        del held


def replaying(**asked: Any) -> Watched:
    session = Watched(Request(**{"fast": "40%", "slow": "emulated:cxl-asic-x8", "tracker": "ops", **asked}), [], [])
    session.open()
    return session


MANY = [f"layer {number}" for number in range(20)]


@pytest.mark.parametrize("step", [["a", "b", *MANY], ["a", *MANY]], ids=["begins alike", "ends otherwise"])
def test_a_step_many_times_as_long_as_the_cycle_is_recorded_though_no_optimizer_steps(
    step: list[str], tmp_path: Path
) -> None:
    session = replaying()
    replay(session, ["x", "y"])
    files.save(session.end_profile(), tmp_path / "plan.json")
    session.stop()
    session = replaying(plan=tmp_path / "plan.json")
    replay(session, ["a", "b"])
    session.end_profile()  # too early: from now on a step of two layers is to be recorded
    for _ in range(30):
        replay(session, step)
    session.stop()
    assert session.seen[-3:] == ["ApplyingPlans", "ENDING", "ENDED"]
    assert session.plan is not None
    assert len(session.plan.layers) == len(step)


def test_the_ticks_of_the_profiled_step_list_no_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, optimizers = [0], TrainingJob.optimizers

    def counted(job: TrainingJob) -> Any:
        listed[0] += 1
        return optimizers.__get__(job)

    session = replaying()
    monkeypatch.setattr(TrainingJob, "optimizers", property(counted))
    replay(session, MANY)
    assert listed == [0]
    session.end_profile()
    session.stop()


def test_a_step_lists_optimizers_only_for_one_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step of one optimizer for each parameter took time with the square of their number."""
    listed, optimizers = [0], TrainingJob.optimizers

    def counted(job: TrainingJob) -> Any:
        listed[0] += 1
        return optimizers.__get__(job)

    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    other = torch.nn.Parameter(torch.ones(2))
    given, found, unrelated = (torch.optim.SGD([each], lr=0.1) for each in (model.weight, model.bias, other))
    job = TrainingJob([model], [given])
    job.watch_new_optimizers()
    after = []
    with monkeypatch.context() as patched:
        patched.setattr(RUNTIME, "sink", SimpleNamespace(step_boundary=lambda: None))
        patched.setattr(TrainingJob, "optimizers", property(counted))
        for _ in range(4):
            for each in (given, found, unrelated):
                each.step()
            after.append(listed[0])
    try:
        assert job.optimizers == [given, found]
    finally:
        job.close()
    assert after[0] > 0
    assert after[1:] == [after[1]] * 3


def test_a_saved_plan_is_checked_then_applied(tmp_path: Path) -> None:
    plan = states([ALL] * 5).plan
    assert plan is not None
    files.save(plan, tmp_path / "plan.json")
    session = states([ALL] * 4, plan=tmp_path / "plan.json")
    assert session.seen == ["ENDED", CheckingSavedPlan.__name__, "ApplyingPlans", "ENDING", "ENDED"]
    other = states([(0, 1, 3)] * 6, plan=tmp_path / "plan.json")
    assert other.seen == ["ENDED", "CheckingSavedPlan", *PROFILED[2:], "ENDING", "ENDED"]


def test_a_plan_for_a_machine_that_is_only_declared_is_not_applied() -> None:
    session = states([ALL] * 4, machine="cxl-m5", slow="auto")
    assert session.seen[-2:] == ["ENDING", "DECLARED"]
    assert any("nothing was applied" in note for note in session.notes)


def test_before_it_is_opened_a_session_knows_nothing() -> None:
    session = Session(Request(), [], [])
    assert (session.plan, session.profile, session.trace, session.notes) == (None, None, None, ())
    assert session.state is Over.ENDED
