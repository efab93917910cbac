"""Trains a small model twice, on stock PyTorch and with Sentinel on node 1, and tells what happened."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

import sentinel
from sentinel.core.run import Run
from sentinel.migration.witness import MigrationWitness
from sentinel.reports.sections.witness_table import verdict
from tests.seen_pages import pages

STEPS = 7
PROOF_PAGES = 2
"""The session's own witness proves itself by moving a page there and back, and this one sees that too."""
ALL_ADDRESSES = (0, 1 << 47)


def train(*, stock: bool) -> tuple[list[float], list[torch.Tensor], Run | None]:
    """Losses, final parameters, and what was executed."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(64, 128), torch.randint(0, 10, (64,))
    with nullcontext() if stock else sentinel.annotate(model, optimizer):
        losses = []
        for step in range(STEPS):
            if step == 1 and not stock:
                sentinel.start_profile(model, optimizer, fast="20%", slow="numa:1")
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step == 1 and not stock:
                sentinel.end_profile()
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        return losses, parameters, None if stock else sentinel.stop()


def told() -> dict[str, Any]:
    """What happened, by the engine's word and by the kernel's. No session is left, whatever is raised."""
    witness = MigrationWitness()
    try:
        losses, parameters, _ = train(stock=True)
        witness.start([ALL_ADDRESSES])
        our_losses, our_parameters, run = train(stock=False)
        seen = witness.read()  # what was brought back at the end is in both
    finally:
        witness.stop()
        if sentinel.active():
            sentinel.stop()
    assert run is not None
    report = sentinel.report()
    return {
        "same_losses": losses == our_losses,
        "same_parameters": all(map(torch.equal, parameters, our_parameters)),
        "learned": losses[-1] < losses[0],
        "claimed_pages": int(run.migrations["moved_bytes"].sum()) // 4096,
        "claimed_steps": len(set(run.migrations["step"].tolist())),
        "seen_pages": pages(seen, reason="syscall", own=True) - PROOF_PAGES,
        "seen_to_node_1": pages(seen, reason="syscall", to_node=1),
        "unaccounted": [seen.lost, seen.unmatched],
        "report": {name: report.headline[name] for name in ("moved_pages", "witness_pages")},
        "verdict": verdict(report.executed),
    }
