"""A small job for comparisons of placements: a deep perceptron whose layers fit one by one, not all together."""

from __future__ import annotations

import sys

import torch
from torch import nn

import sentinel

WIDTH, DEPTH = 256, 8

if __name__ == "__main__":
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(16, WIDTH), torch.randint(0, 10, (16,))
    sentinel.annotate(model, optimizer)
    for step in range(int(sys.argv[1])):
        if step == 1:
            sentinel.start_profile(model, optimizer)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            sentinel.end_profile()
        print("step", step, flush=True)
