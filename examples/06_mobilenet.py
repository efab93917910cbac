"""A MobileNetV2 that reads handwritten digits: many thin layers, RMSprop, gradients accumulated over two batches."""

from __future__ import annotations

import common
import torch
from torch import nn
from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

import sentinel

HALVES = 2


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    torch.manual_seed(0)
    wider, rows, pixels = (1.4, 2, 32) if options.small else (1.0, 16, 64)
    config = MobileNetV2Config(num_channels=1, image_size=pixels, depth_multiplier=wider, num_labels=10)
    model = MobileNetV2ForImageClassification(config).train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
    batches = common.digit_batches(rows, pixels)
    losses = []

    if not options.stock:
        sentinel.annotate(model, optimizer)
    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(HALVES):
            images, labels = next(batches)
            loss = nn.functional.cross_entropy(model(images).logits, labels) / HALVES
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(common.show(step, total))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
