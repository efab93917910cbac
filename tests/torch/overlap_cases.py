"""Training with updates in backward, beside the same training without.

python -m tests.torch.overlap_cases DIRECTORY overlap
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import sentinel
from sentinel.session.overlapped_steps import OverlappedSteps
from tests.torch.passive_cases import BUDGET, digest, plain_mlp

STEPS = 7
LEAST_BYTES = 256
"""Of a parameter that takes its update in backward here: most of the network's do."""


class Tied(nn.Module):
    """Words whose table is the head too, a norm, and a checkpointed block that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.block = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))
        self.last = nn.Linear(16, 16)
        self.unused = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.words(tokens)
        for _ in range(2):
            found = found + torch.utils.checkpoint.checkpoint(self.block, found, use_reentrant=False)
        return self.last(found) @ self.words.weight.T


def network() -> tuple[Any, torch.Tensor]:
    """The same at each call, and tokens for each step."""
    torch.manual_seed(3)
    return Tied(), torch.randint(40, (STEPS, 8, 6))


Make = Callable[[Iterator[nn.Parameter]], Optimizer]


def two_groups(kind: type[Optimizer], **options: Any) -> Make:
    def make(parameters: Iterator[nn.Parameter]) -> Optimizer:
        held = list(parameters)
        own = copy.deepcopy(options)  # schedules write into a rate that is a tensor
        return kind([{"params": held[::2]}, {"params": held[1::2], "lr": 0.003}], **own)

    return make


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten().roll(1))


def train(make: Make, step: Callable[..., None] | None = None, *, steps: int = STEPS) -> dict[str, Any]:
    """Train with a schedule; `step(model, optimizer, tokens, number)` in the place of backward, step and zero_grad."""
    model, tokens = network()
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    losses = []
    for number, batch in enumerate(tokens[:steps]):
        loss = loss_of(model, batch)
        losses.append(loss.item())
        if step is not None:
            step(model, optimizer, loss, number)
        else:
            loss.backward()
            optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return {"losses": losses, "parameters": digest(model.parameters()), "state": digest(state_of(optimizer))}


def state_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for entry in optimizer.state_dict()["state"].values():
        yield from (value for value in entry.values() if torch.is_tensor(value))


@contextmanager
def overlapped() -> Iterator[OverlappedSteps]:
    """Updates are made in backward."""
    steps = OverlappedSteps(LEAST_BYTES)
    steps.begin()
    try:
        yield steps
    finally:
        steps.end()


def main(folder: str, overlap: str) -> None:
    """Five steps of eight layers of 16 MiB each, in 44 MiB of memory and a file."""
    torch.manual_seed(1)
    torch.set_num_threads(2)
    sentinel.start_profile(fast=BUDGET["mlp"], slow=f"file:{folder}=1GiB", overlap_optimizer=overlap == "overlap")
    found = plain_mlp()
    report = sentinel.report()
    assert report.setup.storage is not None
    sentinel.stop()
    print(json.dumps({"found": found, "storage": report.setup.storage._asdict(), "text": report.text()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
