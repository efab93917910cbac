"""A small convolutional network for `sentinel prove --quick`, written as a user's script is."""

from __future__ import annotations

import torch
from torch import nn

from sentinel.proving.small_training import Job, main

CHANNELS, DEPTH, ROWS, PIXELS = 16, 4, 4, 16


def made() -> Job:
    """The model, and random numbers for it."""
    blocks: list[nn.Module] = []
    for depth in range(DEPTH):
        blocks += [nn.Conv2d(CHANNELS if depth else 1, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.randn(ROWS, 1, PIXELS, PIXELS), torch.randint(0, 10, (ROWS,))


if __name__ == "__main__":
    main(made, __doc__)
