"""A ResNet that reads handwritten digits. In-place activations, batch norm buffers, SGD with momentum."""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

import sentinel


def job(batch: int = 48, *, small: bool = False) -> common.Job:
    """What trains a step of `batch` images, as `sentinel estimate examples/02_resnet.py:job` takes it."""
    torch.manual_seed(0)
    rows, pixels = (2, 32) if small else (batch, 64)
    config = ResNetConfig(
        num_channels=1,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2] * 4,
        layer_type="basic",
        num_labels=10,
    )
    model = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = common.digit_batches(rows, pixels)

    def step() -> Tensor:
        images, labels = next(batches)
        loss = nn.functional.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"model": model, "optimizer": optimizer, "step": step}


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    made = job(small=options.small)
    model, optimizer, losses = made["model"], made["optimizer"], []

    if not options.stock:
        sentinel.annotate(model, optimizer)
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
