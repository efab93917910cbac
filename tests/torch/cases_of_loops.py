"""What a training loop does around forward, backward and step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.case_parts import Job, batch, fit, mlp


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
