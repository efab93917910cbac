"""A small perceptron for `sentinel prove --quick`, written as a user's script is."""

from __future__ import annotations

import torch
from torch import nn

from sentinel.proving.small_training import Job, main

WIDTH, DEPTH, ROWS = 512, 6, 4


def made() -> Job:
    """The model, and random numbers for it."""
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).train()
    optimizer = torch.optim.Adam(model.parameters())
    return model, optimizer, torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))


if __name__ == "__main__":
    main(made, __doc__)
