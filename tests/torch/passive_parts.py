"""What the cases of training from a file are built of: networks, steps, and what came of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

STEPS = 5


def mlp(layers: int = 8, rows: int = 256) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Parameters, gradients and the state of AdamW take 16 MiB a layer, what it keeps for backward 1 MiB.

    Fewer rows would be too small for frames. More of them take longer to compute, and no more of a layer moves.
    """
    model = nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(1024, 1024), nn.GELU())])
    return model, torch.randn(STEPS, rows, 1024), torch.randn(rows, 1024)


class Gpt(nn.Module):
    """Two blocks and a tied head: parameters, gradients and state take 240 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4096, 768)
        block = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.blocks(self.words(tokens), mask=self.mask, is_causal=True)
        return found @ self.words.weight.T


def gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(4096, (STEPS, 2, 128))
    return Gpt(), tokens, tokens[0].roll(-1, 1)


def loss_of(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.dtype == torch.int64:
        return nn.functional.cross_entropy(found.flatten(0, 1), target.flatten())
    return (found - target).square().mean()


def digest(tensors: Any) -> str:
    told = hashlib.sha256()
    for tensor in tensors:
        told.update(tensor.detach().contiguous().numpy().tobytes())
    return told.hexdigest()


Between = Callable[[int, nn.Module], None]


def train(make: Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]], between: Between, **options: Any) -> dict:
    """Five steps of AdamW; `between(step, model)` is called after each forward pass."""
    model, inputs, target = make()
    return steps_of(model, iter(inputs), target, between, **options)


def steps_of(model: nn.Module, inputs: Iterator[Any], target: torch.Tensor, between: Between, **options: Any) -> dict:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    losses = []
    for step, batch in enumerate(inputs):
        loss = loss_of(model(batch), target)
        between(step, model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    return {"losses": losses, "parameters": digest(model.parameters()), "state": digest(state)}


def nothing(_step: int, _model: nn.Module) -> None:
    return
