"""A recommendation model (DLRM): large tables of which a few rows are hot (Zipf). Annotated by hand."""

from __future__ import annotations

from collections.abc import Iterator

import common
import numpy as np
import torch
from torch import Tensor, nn

import sentinel

TABLES, ROWS, WIDTH, DENSE = 8, 30_000, 32, 13


class Dlrm(nn.Module):
    """Dense features through an MLP, categories through tables, then their dot products through an MLP."""

    def __init__(self) -> None:
        super().__init__()
        tables = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES)]
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
    """(dense, rows, labels) without end; row k is wanted about 1/k as often as the first one."""
    random = np.random.default_rng(0)
    while True:
        rows = torch.from_numpy(random.zipf(1.2, (TABLES, batch, bag)) % ROWS)
        dense = torch.from_numpy(random.standard_normal((batch, DENSE), np.float32))
        yield dense, rows, (rows[0, :, 0] % 2).float()


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    torch.manual_seed(0)
    model = Dlrm().train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    batches = clicks(batch=2048, bag=4)
    losses = []

    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        dense, rows, labels = next(batches)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, rows), labels)
        optimizer.zero_grad()
        loss.backward()
        sentinel.add_layer("backward")
        optimizer.step()
        sentinel.add_layer("optimizer")
        losses.append(common.show(step, loss))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
