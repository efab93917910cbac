"""A GPT-2 that learns English bytes. The model is a library's: `annotate` finds its layers."""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import sentinel


def job(batch: int = 4, *, small: bool = False) -> common.Job:
    """What trains a step of `batch` rows, as `sentinel estimate examples/01_gpt2.py:job` takes it."""
    torch.manual_seed(0)
    width, depth, rows, columns = (192, 10, 1, 32) if small else (384, 6, batch, 256)
    config = GPT2Config(
        vocab_size=256, n_positions=256, n_embd=width, n_layer=depth, n_head=6, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = common.text_batches(rows, columns)

    def step() -> Tensor:
        inputs, targets = next(batches)
        logits = model(inputs).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return {"model": model, "optimizer": optimizer, "step": step}


def train(options: common.Options) -> tuple[list[float], nn.Module]:
    """Losses of `options.steps` steps, and the trained model."""
    made = job(small=options.small)
    model, optimizer, losses = made["model"], made["optimizer"], []

    if not options.stock:
        sentinel.annotate(model, optimizer)
    for step in range(options.steps):
        if options.begins(step):
            sentinel.start_profile(model, optimizer, fast=options.fast, slow=options.slow)
        losses.append(common.show(step, made["step"]()))
        if options.begins(step):
            sentinel.end_profile()
    return losses, model


if __name__ == "__main__":
    chosen = common.options(__doc__)
    train(chosen)
    common.finish(chosen)
