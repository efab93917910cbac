"""A job that unfreezes a part of its model, on two real nodes: profiled again, and never beyond the budget."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch  # noqa: E402
from torch import nn  # noqa: E402

from sentinel.core.layer_cycle import ROUNDS  # noqa: E402
from sentinel.session import current  # noqa: E402
from tests.numa.training import Net, in_process  # noqa: E402
from tests.training import Trained, assert_same, train  # noqa: E402

FROZEN, UNFREEZE_AT = 6, 6
STEPS = UNFREEZE_AT + ROUNDS + 8


def unfreeze(step: int, model: nn.Module) -> None:
    if step == UNFREEZE_AT:
        model.requires_grad_(True)


def trained(ours: dict[str, str] | None) -> Trained:
    torch.manual_seed(0)
    model = Net()
    for layer in list(model)[:FROZEN]:
        layer.requires_grad_(False)
    return train(model, in_process(), steps=STEPS, ours=ours, before_step=unfreeze)


def test_unfrozen_layers_are_planned_for_within_the_budget() -> None:
    run = assert_same(trained(None), trained({"fast": "30%", "slow": "numa:1", "tracker": "ops"}))
    assert not run.emulated
    session = current()
    assert session is not None
    assert session.context.follower.n_changes == 1
    assert session.plan is not None
    assert {layer.name for layer in session.plan.layers if layer.phase == "backward"} >= {"0", "2", "4", "6", "8"}
    assert run.steps["in_step"].all()
    assert run.counters.steps >= 4
    assert run.counters.steps_before >= ROUNDS
    assert run.counters.migrated_bytes_by_other_plans > 0
    assert run.counters.overflow_bytes == 0
    assert (run.layers["fast_bytes"] <= run.fast_capacity_bytes).all()
    assert len(run.migrations)
