"""What else holds tensors: workers, numpy, copies, checkpoints, and the loop itself."""

from __future__ import annotations

import copy
import io
import tempfile
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.case_parts import Job, batch, fit, mlp


def dataloader_workers() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(96, 256, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, torch.arange(96) % 16)

    def step(i: int) -> float:
        total = 0.0
        loader = DataLoader(data, batch_size=48, num_workers=2, multiprocessing_context="fork")
        for inputs, labels in loader:  # forks again every step
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
    """An exponential moving average kept as a deep copy, made again in the middle."""
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
