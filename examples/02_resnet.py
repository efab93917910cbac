"""A ResNet that reads handwritten digits. In-place activations, batch norm buffers, SGD with momentum."""

from __future__ import annotations

import common
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import sentinel


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    torch.manual_seed(0)
    widths, depth, rows, pixels = ([32, 32, 48, 64], 5, 2, 32) if options.small else ([64, 128, 256, 512], 2, 48, 64)
    config = ResNetConfig(
        num_channels=1,
        hidden_sizes=widths,
        depths=[depth] * 4,
        layer_type="basic",
        num_labels=10,
    )
    model = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = common.digit_batches(rows, pixels)
    losses = []

    if not options.stock:
        sentinel.annotate(model, optimizer)
    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        images, labels = next(batches)
        loss = nn.functional.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(common.show(step, loss))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
