"""A session on a machine of three tiers, emulated: same bits, and no tier ever holds more than it has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel import files  # noqa: E402
from sentinel.core.units import parse_bytes  # noqa: E402
from sentinel.session import planning  # noqa: E402
from sentinel.session.applying import Applying  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")

MIDDLE = "20MiB"
SLOW = f"emulated:cxl-asic-x8={MIDDLE}+cxl-worst"
STEPS, PROFILED_AT = 12, 2


def train(slow: str | None) -> tuple[list[float], list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(12)])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    inputs = torch.randn(64, 512)
    losses = []
    with sentinel.annotate(model, optimizer):
        for step in range(STEPS):
            if slow is not None and step == PROFILED_AT:
                sentinel.start_profile(fast="20%", slow=slow, tracker="ops")
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if slow is not None and step == PROFILED_AT:
                sentinel.end_profile()
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("plans", [1, 2])
def test_training_is_bit_identical_and_every_tier_keeps_to_its_size(tmp_path, monkeypatch, plans: int) -> None:
    """Also while a second plan takes over, which is made with layer times as executed."""
    monkeypatch.setattr(planning, "REFINE_GAIN", 0.0 if plans == 1 else 1e9)
    renewed: list[Any] = []
    renew = Applying.renew

    def renewing(*given: Any) -> None:
        renewed.append(given)
        renew(*given)

    monkeypatch.setattr(Applying, "renew", renewing)
    expected, parameters = train(None)
    losses, ours = train(SLOW)
    run, report = sentinel.stop(), sentinel.report()
    assert losses == expected
    assert len(renewed) == plans - 1
    assert (run.counters.migrated_bytes_by_other_plans > 0) == (plans == 2)
    assert all(torch.equal(one, other) for one, other in zip(ours, parameters, strict=True))
    assert run.tier_names == ("fast", "cxl-asic-x8", "cxl-worst")
    assert report.plan.capacity_bytes[1] == parse_bytes(MIDDLE)
    for tier, capacity in enumerate(report.plan.capacity_bytes):
        held = run.held_bytes(tier)
        assert 0 < held.max() <= capacity
        if plans == 1:  # else the last tier has what the other plan has left, too
            assert held.max() <= report.plan.held_bytes[tier].max()
    ways = set(zip(run.migrations["source"].tolist(), run.migrations["target"].tolist(), strict=True))
    assert {(0, 1), (1, 0), (0, 2), (2, 0)} <= ways
    files.save(run, tmp_path / "run")
    assert (files.load_run(tmp_path / "run").held == run.held).all()
    assert "cxl-worst" in report.text()
