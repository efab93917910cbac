"""A plan that is made again takes over on two real nodes: nothing comes home first, and all that held before holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.machine import Machine  # noqa: E402
from sentinel.core.plan import Plan  # noqa: E402
from sentinel.executed.audit import Audit  # noqa: E402
from sentinel.planner.make_plan import MadePlan  # noqa: E402
from sentinel.session import planning  # noqa: E402
from sentinel.session.applying_plans import REFINE_STEPS  # noqa: E402
from sentinel.session.planning import Dataflow, Planning  # noqa: E402
from tests.numa.punctual import punctual  # noqa: E402
from tests.numa.training import Net, in_process  # noqa: E402
from tests.training import Trained, assert_same, train  # noqa: E402

STEPS = 2 + REFINE_STEPS + 5


class Onlooker(sentinel.Observer):
    """Audits every step that a plan is applied in, plan by plan."""

    def __init__(self) -> None:
        self.audits: list[list[Audit]] = []
        self._layer: int | None = None
        self._show: tuple[Plan, Machine, Callable[[int], list[tuple[int, int]]]] | None = None

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        self._show = plan, machine, ranges
        self.audits.append([])

    def step_began(self) -> None:
        self._layer = None

    def layer_began(self, layer: int) -> None:
        self._end_layer()
        self._layer = layer

    def step_ended(self) -> None:
        self._end_layer()

    def _end_layer(self) -> None:
        layer, self._layer = self._layer, None
        if layer is None:
            return
        assert self._show is not None
        if layer == 0 or not self.audits[-1]:
            self.audits[-1].append(Audit(*self._show))
        self.audits[-1][-1].after(layer)


def _trained(*, ours: bool) -> Trained:
    torch.manual_seed(0)
    asked = {"fast": "20%", "slow": "numa:1", "tracker": "ops", "policy": "lru"} if ours else None
    return train(Net(), in_process(), steps=STEPS, ours=asked)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans made, of which the second is by another policy, and applied whatever is predicted."""
    plans: list[Plan] = []
    take = Planning._completed

    def by_another_policy(self: Planning, wanted: Dataflow, made: MadePlan) -> Dataflow:
        flow = take(self, wanted, made)
        assert flow.plan is not None
        plans.append(flow.plan)
        self._request = replace(self._request, policy="sentinel")
        return flow

    monkeypatch.setattr(Planning, "_completed", by_another_policy)
    monkeypatch.setattr(planning, "REFINE_GAIN", float("inf"))
    return plans


def test_another_plan_takes_over(made: list[Plan]) -> None:
    onlooker = Onlooker()
    with punctual(), sentinel.observe(onlooker) as watch:
        ours = _trained(ours=True)
    assert watch.raised is None
    run = assert_same(_trained(ours=False), ours)
    assert len(made) == len(onlooker.audits) == 2
    assert list(made[0].migrations) != list(made[1].migrations)

    found = [[audit.found for audit in audits] for audits in onlooker.audits]
    assert len(found[0]) == REFINE_STEPS
    assert len(found[1]) >= 4
    assert max(each.fast_peak_bytes for steps in found for each in steps) <= run.fast_capacity_bytes
    assert run.counters.overflow_bytes == 0
    for plan, audits in zip(made, onlooker.audits, strict=True):
        # The first step of a plan still sends there what it wants elsewhere. Pages that tensors kept meanwhile, of
        # transient blocks, are dropped in the second.
        assert not any(plan.blocks[block].persistent for _, block in audits[1].worst)
        assert [audit.worst for audit in audits[2:]] == [{}] * (len(audits) - 2)

    headline = sentinel.report().headline
    assert run.counters.migrated_bytes_by_other_plans > 0
    assert headline["moved_pages"] == headline["witness_pages"] > run.counters.migrated_bytes // 4096
