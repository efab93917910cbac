"""What the cases are built of: a job, networks, batches, and one step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Job:
    """Models and optimizers to annotate, the step, and what else must come out the same."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    step: Callable[[int], float]
    extra: list[Any] = field(default_factory=list)


def mlp(width: int = 256, depth: int = 6, **relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(**relu)]
    return nn.Sequential(*layers, nn.Linear(width, 16))


def batch(i: int, rows: int = 64, width: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(rows, width, generator=g), torch.randint(0, 16, (rows,), generator=g)


def fit(model: nn.Module, opt: torch.optim.Optimizer, i: int, rows: int = 64) -> float:
    x, y = batch(i, rows)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


class TiedLM(nn.Module):
    def __init__(self, dropout: float = 0.0, ckpt: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 128)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 256, dropout=dropout, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(128, 512, bias=False)
        self.head.weight = self.embed.weight
        self.ckpt = ckpt

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.ckpt else block(x)
        return self.head(x)


def tokens(i: int, rows: int = 4, length: int = 48) -> torch.Tensor:
    return torch.randint(0, 512, (rows, length), generator=torch.Generator().manual_seed(77 + i))


def lm_step(model: nn.Module, opt: torch.optim.Optimizer, i: int, length: int = 48) -> float:
    ids = tokens(i, length=length)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()
