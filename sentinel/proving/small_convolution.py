"""A small convolutional network for `sentinel prove --quick`, written as a user's script is."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import sentinel

CHANNELS, DEPTH, ROWS, PIXELS = 16, 4, 4, 16


def train(steps: int, *, stock: bool) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = []
    for depth in range(DEPTH):
        blocks += [nn.Conv2d(CHANNELS if depth else 1, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(ROWS, 1, PIXELS, PIXELS), torch.randint(0, 10, (ROWS,))
    if not stock:
        sentinel.annotate(model, optimizer)
    for step in range(steps):
        if step == 1 and not stock:
            sentinel.start_profile(model, optimizer, fast="20%")
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and not stock:
            sentinel.end_profile()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stock", action="store_true")
    given = parser.parse_args()
    train(given.steps, stock=given.stock)
