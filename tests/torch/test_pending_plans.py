"""Where a job has several processes, another plan is made beside training: none of them waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.budget import Budget  # noqa: E402
from sentinel.core.errors import PlanError  # noqa: E402
from sentinel.core.layer_cycle import ROUNDS  # noqa: E402
from sentinel.core.pins import Pins  # noqa: E402
from sentinel.files import digest  # noqa: E402
from sentinel.planner.make_plan import MadePlan, PlanOrder  # noqa: E402
from sentinel.session import current, planning  # noqa: E402
from sentinel.session.applying_plans import REFINE_STEPS, ApplyingPlans, WaitingForPlan  # noqa: E402
from sentinel.system.launched import Launched  # noqa: E402
from sentinel.system.planning_process import PlanningProcess  # noqa: E402
from tests.builders import MIB, make_machine, make_profile, param  # noqa: E402
from tests.processes import until  # noqa: E402
from tests.torch.bit_identity_cases import job  # noqa: E402
from tests.torch.test_changed_layers import HERE, Reordered  # noqa: E402
from tests.torch.test_shapes import Shaped  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
PASS_THROUGH = 0
"""SN_PASS_THROUGH: allocations are stock's."""
ASKED: dict[str, Any] = {"fast": "30%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}
TURNS = make_profile([param("a", 8 * MIB, [1, 2]), param("b", 8 * MIB, [5, 6])], 8, layer_ns=10**7)


def order(**other: Any) -> PlanOrder:
    asked = PlanOrder(TURNS, make_machine(64 * MIB), "sentinel", Budget(8 * MIB), Pins())
    return asked._replace(**other)


def made(process: PlanningProcess) -> MadePlan:
    until(lambda: process.has_ended)
    found = process.made()
    assert found is not None
    return found


def test_another_process_makes_the_same_plan() -> None:
    here = order(pins=Pins(fast=("a",))).made()
    there = made(PlanningProcess(order(pins=Pins(fast=("a",)))))
    assert digest(there.plan) == digest(here.plan)
    assert there.simulated.step_ns == here.simulated.step_ns
    assert there.left_out == here.left_out == ()


def test_what_cannot_be_kept_is_told_alike() -> None:
    asked = order(pins=Pins(fast=("*",)))
    assert made(PlanningProcess(asked)).left_out == asked.made().left_out
    assert len(asked.made().left_out) == 1


def test_an_order_that_has_no_plan_is_an_error_as_here() -> None:
    asked = order(machine=make_machine(64 * MIB, addressable=False), budget=Budget(MIB))
    with pytest.raises(PlanError) as here:
        asked.made()
    process = PlanningProcess(asked)
    until(lambda: process.has_ended)
    with pytest.raises(PlanError) as there:
        process.made()
    assert str(there.value) == str(here.value)


def test_a_process_that_is_killed_is_an_error_and_leaves_nothing() -> None:
    process = PlanningProcess(order())
    os.kill(process._process.pid, signal.SIGKILL)
    until(lambda: process.has_ended)
    with pytest.raises(PlanError, match=r"the process that planned ended with -9: it said nothing"):
        process.made()
    process.cancel()
    process.cancel()


class Beside:
    """As if others trained beside this process. `held`: no plan is made as long as it holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held, self.processes = True, list[PlanningProcess]()
        outer = self

        class Held(PlanningProcess):
            def __init__(self, asked: PlanOrder) -> None:
                super().__init__(asked)
                outer.processes.append(self)

            def made(self) -> MadePlan | None:
                if outer.held:
                    return None
                until(lambda: self.has_ended)
                return super().made()

        monkeypatch.setattr(planning, "launched", lambda: Launched(size=2))
        monkeypatch.setattr(planning, "PlanningProcess", Held)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    return Beside(monkeypatch)


def trained(
    steps: int,
    step: Callable[[int], float],
    models: Any,
    optimizers: Any,
    now: Callable[[int], None],
    **asked: Any,
) -> Any:
    """Losses, and the session, which goes on; the first step is profiled. `now(i)`: before step i."""
    losses = []
    with sentinel.annotate(models, optimizers):
        for i in range(steps):
            now(i)
            if i == 0:
                sentinel.start_profile(**{**ASKED, **asked})
            losses.append(step(i))
            if i == 0:
                sentinel.end_profile()
    session = current()
    assert session is not None
    return losses, session


def test_a_better_plan_is_taken_once_it_is_made(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.Refined, "is_better", lambda self, flow: True)
    steps, release = 20, 14
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(steps)]
    plans: list[object] = []

    class Applied(sentinel.Observer):
        def plan_applied(self, *told: object) -> None:
            plans.append(told)

    def now(i: int) -> None:
        beside.held = i < release
        if i == release:
            assert (len(beside.processes), len(plans)) == (1, 1)

    with sentinel.observe(Applied()):
        losses, session = trained(steps, work.step, work.models, work.optimizers, now)
    run = sentinel.stop()
    assert losses == expected
    assert len(plans) == 2
    assert run.steps["in_step"].all()
    assert run.counters.steps_before > REFINE_STEPS
    assert any("planned again after" in note for note in session.notes)


@pytest.mark.parametrize(("fast", "renewed"), [("30%", 1), ("2MiB", 0)])
def test_a_shape_has_its_bucket_once_its_plan_is_made(beside: Beside, fast: str, renewed: int) -> None:
    """A share of a larger footprint is a larger budget, which the other bucket gets too."""
    lengths, release = [24, 56] * 16, 16
    stock = Shaped()
    expected = [stock.step(i, tokens) for i, tokens in enumerate(lengths)]
    work = Shaped()  # which seeds the draws of its steps
    buckets: list[int] = []

    def now(i: int) -> None:
        beside.held = i < release
        session = current()
        buckets.append(0 if session is None or i == 0 else len(session.context.applying.buckets))

    step = work.step
    losses, session = trained(len(lengths), lambda i: step(i, lengths[i]), work.model, work.optimizer, now, fast=fast)
    assert losses == expected
    assert max(buckets[:release]) == 1
    assert buckets[-1] == len(session.context.applying.buckets) == 2
    assert session.state.shapes.in_vain == 0
    assert len({bucket.plan.capacity_bytes for bucket in session.context.applying.buckets}) == 1
    assert len(beside.processes) >= 2 + renewed  # refined, the shape, the other's budget
    assert any("a step with other operators or sizes came a second time" in note for note in session.notes)
    assert sentinel.stop().steps["in_step"][-4:].all()


def test_once_a_process_was_lost_plans_are_made_here(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [24] * 6 + [24, 56] * 12
    work = Shaped()
    recorded: list[object] = []
    plan_shape = ApplyingPlans.plan_shape

    def refused(self: ApplyingPlans, flow: Any) -> Any:
        recorded.append(flow)
        beside.held = True
        after = plan_shape(self, flow)
        beside.processes[-1]._process.kill()
        beside.held = False
        return after

    monkeypatch.setattr(ApplyingPlans, "plan_shape", refused)
    monkeypatch.setattr(planning.Planning, "refined", lambda *_: None)

    step = work.step
    _, session = trained(len(lengths), lambda i: step(i, lengths[i]), work.model, work.optimizer, lambda _: None)
    assert isinstance(session.state, ApplyingPlans)
    assert len(beside.processes) == 1
    assert len(recorded) == len(session.context.applying.buckets) == 2
    assert session.state.shapes.in_vain == 1


def test_other_layers_are_followed_once_their_plan_is_made(beside: Beside) -> None:
    there = (0, 2, 3)
    orders, release = [HERE] * 6 + [there] * (ROUNDS + 20), ROUNDS + 18
    stock, work = Reordered(), Reordered()
    expected = [stock.step(i, blocks) for i, blocks in enumerate(orders)]
    states: list[type] = []
    modes: set[int] = set()

    def now(i: int) -> None:
        beside.held = i < release
        if (session := current()) is not None:
            states.append(type(session.state))
            if states[-1] is WaitingForPlan:
                modes.add(session.context.memory._native.sn_memory_mode())

    losses, session = trained(len(orders), lambda i: work.step(i, orders[i]), work.blocks, work.optimizer, now)
    assert losses == expected
    assert WaitingForPlan in states
    assert modes == {PASS_THROUGH}  # nothing is recorded meanwhile
    assert states[-1] is ApplyingPlans
    assert {layer.name.split(".")[0] for layer in session.plan.layers if layer.phase == "forward"} == {"0", "2", "3"}
    assert sentinel.stop().steps["in_step"][-3:].all()


def test_where_none_is_made_the_present_plan_goes_on_and_the_report_says_so(beside: Beside) -> None:
    work = job()

    def now(i: int) -> None:
        for process in beside.processes:
            process._process.kill()
        beside.held = not beside.processes

    _, session = trained(14, work.step, work.models, work.optimizers, now)
    assert isinstance(session.state, ApplyingPlans)
    said = "the present plans go on, since another one could not be made: the process that planned ended with -9"
    assert any(said in note for note in session.notes)


def test_the_end_of_a_session_ends_what_plans_for_it(beside: Beside) -> None:
    work = job()
    _, session = trained(12, work.step, work.models, work.optimizers, lambda _: None)
    (process,) = beside.processes
    assert session.context.planning.pending
    sentinel.stop()
    assert process._process.returncode is not None
    assert session.context.planning.pending == []


def test_where_no_process_can_be_made_the_plan_is_made_here(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: PlanOrder) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(planning, "PlanningProcess", refuse)
    work = job()
    _, session = trained(12, work.step, work.models, work.optimizers, lambda _: None)
    assert isinstance(session.state, ApplyingPlans)
    assert beside.processes == []
    assert session.context.planning.pending == []
