"""An LSTM language model: recurrent layers, one tick after each, and the optimizer's step slice by slice."""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn

import sentinel


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out; `depth` recurrent layers of `width`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, columns) int64 -> (rows, columns, 256)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x, _ = layer(x)
            x = self.dropout(x)
        logits: Tensor = self.head(x)
        return logits


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    torch.manual_seed(0)
    width, depth, rows, columns = (208, 12, 4, 8) if options.small else (384, 3, 16, 96)
    model = LanguageModel(width, depth).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = common.text_batches(rows, columns)
    losses = []

    if not options.stock:
        sentinel.annotate(model, optimizer)
    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        inputs, targets = next(batches)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(common.show(step, loss))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
