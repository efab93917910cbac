"""What a network does with its tensors: in place, tied, dropped, recomputed, in bfloat16."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.torch.case_parts import Job, TiedLM, batch, fit, lm_step, mlp


def plain() -> Job:
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Job([model], [opt], lambda i: fit(model, opt, i))


def inplace_activations() -> Job:
    model = mlp(inplace=True)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return Job([model], [opt], lambda i: fit(model, opt, i))


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
