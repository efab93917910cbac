"""Small training jobs, each with one habit that a memory runtime could break.

A case is a function `build() -> Job`; `Job.step(i)` runs one whole training step and returns its loss.
The same seeds are set before every build, so two builds train alike.
"""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


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


def plain() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i))


def inplace_activations() -> Job:
    model = mlp(inplace=True)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return Job([model], [opt], lambda i: fit(model, opt, i))


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


def tied_weights() -> Job:
    model = TiedLM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: lm_step(model, opt, i))


def dropout() -> Job:
    model = TiedLM(dropout=0.2)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    return Job([model], [opt], lambda i: lm_step(model, opt, i))


def checkpointing() -> Job:
    model = TiedLM(dropout=0.1, ckpt=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: lm_step(model, opt, i))


def accumulation_and_clipping() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(i: int) -> float:
        total = 0.0
        for micro in range(3):
            x, y = batch(3 * i + micro)
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        return total

    return Job([model], [opt], step)


def grads_kept() -> Job:
    """zero_grad(set_to_none=False): gradients live for ever."""
    model = mlp()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step(i: int) -> float:
        x, y = batch(i)
        opt.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def two_optimizers() -> Job:
    gen, disc = mlp(depth=2), mlp(depth=2)
    to_image = nn.Linear(16, 256)
    opt_g = torch.optim.Adam([*gen.parameters(), *to_image.parameters()], lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.SGD(disc.parameters(), lr=1e-2)

    def step(i: int) -> float:
        real, _ = batch(i)
        noise, _ = batch(i + 500)
        fake = to_image(gen(noise))
        opt_d.zero_grad()
        d_loss = disc(real).square().mean() - disc(fake.detach()).square().mean().clamp(max=1)
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = disc(fake).square().mean()
        g_loss.backward()
        opt_g.step()
        return d_loss.item() + g_loss.item()

    return Job([gen, to_image, disc], [opt_g, opt_d], step)


def autocast_bf16() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(i: int) -> float:
        x, y = batch(i)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def data_dependent_shapes() -> Job:
    model = TiedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = [48, 17, 48, 63, 5, 48, 33, 40, 48, 21, 9, 48]
    return Job([model], [opt], lambda i: lm_step(model, opt, i, lengths[i % len(lengths)]))


def shapes_that_take_turns() -> Job:
    """Two lengths, of which each comes to have a plan of its own."""
    model = TiedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: lm_step(model, opt, i, length=(32, 48)[i % 2]))


def smaller_last_batch() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i, rows=24 if i % 3 == 2 else 64))


def skipped_experts() -> Job:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(256, 256)
            self.experts = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
            self.head = nn.Linear(256, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x).relu()
            chosen = int(x[0, 0].item() * 1e4) % 4
            for index, expert in enumerate(self.experts):
                if index != chosen:
                    x = x + expert(x).relu()
            return self.head(x)

    model = Mixture()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.lstm = nn.LSTM(64, 96, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(96, 512)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        if lengths is None:
            return self.head(self.lstm(x)[0])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return self.head(out)


def packed_sequences() -> Job:
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(i: int) -> float:
        ids = tokens(i, rows=8, length=32)
        lengths = torch.randint(4, 33, (8,), generator=torch.Generator().manual_seed(i))
        loss = F.cross_entropy(model(ids, lengths).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def dense_lstm() -> Job:
    model = Tagger()
    opt = torch.optim.Adagrad(model.parameters(), lr=1e-2)

    def step(i: int) -> float:
        ids = tokens(i, rows=8, length=32)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def dataloader_workers() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(96, 256, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, torch.arange(96) % 16)

    def step(i: int) -> float:
        total = 0.0
        loader = DataLoader(data, batch_size=48, num_workers=2, multiprocessing_context="fork")
        for inputs, labels in loader:  # forks anew every step
            loss = F.cross_entropy(model(inputs), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        return total

    return Job([model], [opt], step)


def numpy_alias() -> Job:
    model = mlp(depth=3)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    alias = model[0].weight.detach().numpy()
    seen: list[Any] = []

    def step(i: int) -> float:
        alias[i % 7, :5] *= 0.5  # written through numpy, read by torch
        loss = fit(model, opt, i)
        assert np.shares_memory(alias, model[0].weight.detach().numpy())
        seen.append(alias.copy())
        return loss

    return Job([model], [opt], step, seen)


def deepcopies() -> Job:
    """An exponential moving average kept as a deep copy, made anew in the middle."""
    model = mlp(depth=3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen: list[Any] = []
    ema = copy.deepcopy(model)

    def step(i: int) -> float:
        nonlocal ema
        loss = fit(model, opt, i)
        if i % 4 == 3:
            ema = copy.deepcopy(model)
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.1)
            seen.append(sum(float(p.double().sum()) for p in ema.parameters()))
        return loss

    return Job([model], [opt], step, seen)


def state_dict_round_trip() -> Job:
    model = mlp(depth=3)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(i: int) -> float:
        loss = fit(model, opt, i)
        if i in (3, 6):
            with tempfile.TemporaryFile() as file:
                torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
                file.seek(0)
                kept = torch.load(io.BytesIO(file.read()))
            fit(model, opt, 900 + i)  # a step that the load takes back
            model.load_state_dict(kept["model"])
            opt.load_state_dict(kept["opt"])
        return loss

    return Job([model], [opt], step)


class _Stop(Exception):
    pass


def exception_in_step() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept: list[Any] = []

    def step(i: int) -> float:
        if i in (3, 5):
            x, y = batch(i + 100)
            try:
                hidden = model[:5](x)
                kept.append(hidden.sum())  # a graph that outlives the exception
                if i == 5:
                    F.cross_entropy(model(x), y).backward()
                raise _Stop
            except _Stop:
                opt.zero_grad()
        loss = fit(model, opt, i)
        if i == 6:
            kept[:] = [k.item() for k in kept]
        return loss

    return Job([model], [opt], step, kept)


def validation_between() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen: list[float] = []

    def step(i: int) -> float:
        loss = fit(model, opt, i)
        if i % 2:
            model.eval()
            with torch.no_grad():
                seen.append(float(F.cross_entropy(model(batch(50 + i, 200)[0]), batch(50 + i, 200)[1])))
            model.train()
        return loss

    return Job([model], [opt], step, seen)


def sparse_embedding() -> Job:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(4096, 64, mode="sum", sparse=True)
            self.mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.mlp(self.bag(ids))

    model = Bag()
    opt = torch.optim.SGD(model.parameters(), lr=1e-1)

    def step(i: int) -> float:
        g = torch.Generator().manual_seed(i)
        ids, y = torch.randint(0, 4096, (32, 8), generator=g), torch.randint(0, 16, (32,), generator=g)
        loss = F.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Job([model], [opt], step)


def closure_and_scheduler() -> Job:
    model = mlp(depth=3)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)

    def step(i: int) -> float:
        x, y = batch(i)

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = opt.step(closure)
        plan.step()
        return loss.item()

    return Job([model], [opt], step)


def unknown_optimizer() -> Job:
    model = mlp(depth=3)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(i: int) -> float:
        x, y = batch(i)

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure).item()

    return Job([model], [opt], step)


def kept_outputs() -> Job:
    """Activations and losses kept for several steps: they outlive every plan."""
    model = mlp(depth=4)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept: list[torch.Tensor] = []
    seen: list[float] = []

    def step(i: int) -> float:
        x, y = batch(i)
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept.append(out.detach())
        if len(kept) > 3:
            seen.append(float(kept.pop(0).double().sum()))
        return loss.item()

    return Job([model], [opt], step, seen)


CASES: dict[str, Callable[[], Job]] = {
    f.__name__: f
    for f in (
        plain,
        inplace_activations,
        tied_weights,
        dropout,
        checkpointing,
        accumulation_and_clipping,
        grads_kept,
        two_optimizers,
        autocast_bf16,
        data_dependent_shapes,
        shapes_that_take_turns,
        smaller_last_batch,
        skipped_experts,
        packed_sequences,
        dense_lstm,
        dataloader_workers,
        numpy_alias,
        deepcopies,
        state_dict_round_trip,
        exception_in_step,
        validation_between,
        sparse_embedding,
        closure_and_scheduler,
        unknown_optimizer,
        kept_outputs,
    )
}
