"""A very small job for `sentinel prove` in an emulated machine, written as a user's script is."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import sentinel

WIDTH, DEPTH, ROWS = 128, 6, 4


def train(steps: int, *, stock: bool) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).train()
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stock", action="store_true")
    given = parser.parse_args()
    train(given.steps, stock=given.stock)
