"""A small job for comparisons of placements: a deep perceptron whose layers fit one by one, not all together."""

from __future__ import annotations

import sys

import torch
from torch import nn

import sentinel
from sentinel.session import planning
from tests.numa.punctual import punctual

WIDTH, DEPTH = 256, 8


def main(steps: int) -> None:
    """Train for so many steps."""
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(16, WIDTH), torch.randint(0, 10, (16,))
    sentinel.annotate(model, optimizer)
    for step in range(steps):
        if step == 1:
            sentinel.start_profile(model, optimizer)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            sentinel.end_profile()
        print("step", step, flush=True)


if __name__ == "__main__":
    planning.REFINE_GAIN = 0.0  # whatever the layer times are, one plan is audited, and not in its first step
    with punctual():
        main(int(sys.argv[1]))
