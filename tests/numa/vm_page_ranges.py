"""Trains a small DLRM twice, on stock PyTorch and with page ranges on two nodes, and tells where pages are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sentinel
from sentinel import session
from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES
from sentinel.system import numa
from tests.numa.punctual import let_land

STEPS, TABLES, ROWS, WIDTH = 6, 2, 16384, 32


class Dlrm(nn.Module):
    """Two tables of sparse gradients and a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES))
        self.head = nn.Linear(WIDTH * TABLES, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """rows (TABLES, batch, bag) int64 -> logits (batch,)."""
        features = []
        for table, wanted in zip(self.tables, rows, strict=True):
            features.append(table(wanted))
            sentinel.add_layer("table")
        logits: Tensor = self.head(torch.cat(features, dim=1)).squeeze(1)
        sentinel.add_layer("head")
        return logits


def train(*, stock: bool) -> tuple[list[float], nn.Module]:
    """Losses, and the model that was trained."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    upto = np.cumsum(np.arange(1, ROWS + 1) ** -1.2)
    model = Dlrm().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        if step == 1 and not stock:
            sentinel.start_profile(model, optimizer, fast="40%", slow="numa:1")
        rows = torch.from_numpy(upto.searchsorted(random.random((TABLES, 256, 4)) * upto[-1]))
        loss = nn.functional.binary_cross_entropy_with_logits(model(rows), (rows[0, :, 0] % 2).float())
        optimizer.zero_grad()
        loss.backward()
        sentinel.add_layer("backward")
        optimizer.step()
        sentinel.add_layer("optimizer")
        losses.append(loss.item())
        if step == 1 and not stock:
            sentinel.end_profile()
    return losses, model


def pages_by_range(plan: Plan, model: nn.Module) -> list[dict[str, Any]]:
    """Of each block of a table that never migrates: its pages, and those that the kernel has on the node planned."""
    found = []
    addresses = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    slots = {slot.tensor: slot for slot in plan.slots}
    for index, block in enumerate(plan.blocks):
        slot = slots.get(block.tensors[0]) if len(block.tensors) == 1 else None
        if (
            slot is None
            or slot.name not in addresses
            or not slot.name.startswith("tables")
            or index in plan.moves_by_block
        ):
            continue
        begin = addresses[slot.name] + block.offset - slot.offset
        held = numa.bytes_on(block.tier, [(begin, block.nbytes)])
        found.append(
            {"name": block.name, "tier": block.tier, "pages": block.nbytes // PAGE_BYTES, "there": held // PAGE_BYTES}
        )
    return found


def told() -> dict[str, Any]:
    """Where pages are, and what was planned. No session is left, whatever is raised."""
    losses, model = train(stock=True)
    try:
        our_losses, our_model = train(stock=False)
        now = session.current()
        assert now is not None
        assert now.plan is not None
        let_land(now.context.applying)  # a better plan may have taken over just now
        ranges = pages_by_range(now.plan, our_model)
        headline = sentinel.report().headline
    finally:
        if sentinel.active():
            sentinel.stop()
    return {
        "tracker": headline["tracker"],
        "same_losses": losses == our_losses,
        "same_parameters": all(map(torch.equal, model.parameters(), our_model.parameters())),
        "learned": losses[-1] < losses[0],
        "ranges": ranges,
        "page_ranges": now.plan.details.get("page_ranges"),
        "kind": headline["kind"],
        "fast_peak_bytes": headline["fast_peak_bytes"],
        "fast_capacity_bytes": headline["fast_capacity_bytes"],
    }
