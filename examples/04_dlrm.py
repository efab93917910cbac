"""A recommendation model (DLRM): large tables, their hottest rows first, a few of them hot (Zipf). Annotated by hand.

As in production, rows are in the order of their frequency and gradients are sparse: a step touches what its batch
names, and no more. A page tracker sees that; operators alone do not.
"""

from __future__ import annotations

from collections.abc import Iterator

import common
import numpy as np
import torch
from torch import Tensor, nn

import sentinel

TABLES, ROWS, WIDTH, DENSE = 8, 100_000, 32, 13
SKEW = 1.2


class Dlrm(nn.Module):
    """Dense features through an MLP, categories through tables, then their dot products through an MLP."""

    def __init__(self) -> None:
        super().__init__()
        tables = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES)]
        for table in tables:
            nn.init.normal_(table.weight, std=0.05)
        self.tables = nn.ModuleList(tables)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """dense (batch, DENSE), rows (TABLES, batch, bag) int64 -> logits (batch,)."""
        features = [self.bottom(dense)]
        sentinel.add_layer("bottom")
        for table, wanted in zip(self.tables, rows, strict=True):
            features.append(table(wanted))
            sentinel.add_layer("table")
        stacked = torch.stack(features, dim=1)
        first, second = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, first, second]
        logits: Tensor = self.top(torch.cat([features[0], products], dim=1)).squeeze(1)
        sentinel.add_layer("top")
        return logits


def clicks(batch: int, bag: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(dense, rows, labels) without end; the k-th row is wanted k**-SKEW times as often as the first one."""
    random = np.random.default_rng(0)
    upto = np.cumsum(np.arange(1, ROWS + 1) ** -SKEW)
    while True:
        rows = torch.from_numpy(upto.searchsorted(random.random((TABLES, batch, bag)) * upto[-1]))
        dense = torch.from_numpy(random.standard_normal((batch, DENSE), np.float32))
        yield dense, rows, (rows[0, :, 0] % 2).float()


def job(batch: int = 2048) -> common.Job:
    """What trains a step of `batch` clicks, as `sentinel estimate examples/04_dlrm.py:job` takes it."""
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch warns until it is told: checks cost, and find nothing
    model = Dlrm().train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    batches = clicks(batch, bag=4)

    def step() -> Tensor:
        dense, rows, labels = next(batches)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, rows), labels)
        optimizer.zero_grad()
        loss.backward()
        sentinel.add_layer("backward")
        optimizer.step()
        sentinel.add_layer("optimizer")
        return loss

    return {"model": model, "optimizer": optimizer, "step": step}


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    made = job(64 if options.small else 2048)
    model, optimizer, losses = made["model"], made["optimizer"], []

    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        losses.append(common.show(step, made["step"]()))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
