"""What the small scripts of `sentinel prove --quick` share: a training loop as a user writes it, and its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

import sentinel

Job = tuple[nn.Module, Optimizer, torch.Tensor, torch.Tensor]
"""A model, its optimizer, inputs and targets."""


def main(made: Callable[[], Job], about: str | None) -> None:
    """Train what `made` makes, on the same random numbers in each run. `about`: the script, for its help."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stock", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    _train(*made(), given.steps, stock=given.stock)


def _train(
    model: nn.Module, optimizer: Optimizer, inputs: torch.Tensor, targets: torch.Tensor, steps: int, *, stock: bool
) -> None:
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
