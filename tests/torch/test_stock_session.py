"""A session that leaves everything to stock PyTorch follows whole steps, those of the optimizer too."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch

import sentinel
from sentinel.executed.stock import StockSession
from sentinel.runtime import RUNTIME
from sentinel.session.request import Request


def test_it_follows_steps_and_their_ends_without_a_word() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())
    annotated = sentinel.annotate(model, optimizer)
    session = StockSession(Request(), [], [])
    session.open()
    try:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            if step == 0:
                assert session.end_profile().layers
        assert RUNTIME.sink is session
    finally:
        session.stop()
        annotated.remove()
    assert RUNTIME.sink is None
