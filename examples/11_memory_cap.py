"""A GPT-2 that needs more memory than its process may take: tensors that do not fit are in a file.

Losses and parameters are the same as with `--stock`, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib

import common
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import sentinel


def train(steps: int) -> nn.Module:
    """The model after so many steps, each of which prints its loss."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=256, n_embd=768, n_layer=8, n_head=12, bos_token_id=0, eos_token_id=0
    )
    model: nn.Module = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = common.text_batches(2, 256)
    for step in range(steps):
        inputs, targets = next(batches)
        logits = model(inputs).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        common.show(step, loss)
    return model


def digest_of(model: nn.Module) -> str:
    """SHA-256 of all parameters, in their order."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().clone().numpy().data)  # an operator brings it into memory
    return digest.hexdigest()


def main() -> None:
    """Train, print what the parameters have become, and the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="training steps (default %(default)s)")
    parser.add_argument(
        "--cap", default="900MiB", help="memory of the whole process, such as 2GiB (default %(default)s)"
    )
    parser.add_argument("--slow", default="file:auto", help="where the rest goes (default %(default)s), or file:DIR")
    parser.add_argument("--report", help="write the report here (.html, .json, .csv, .txt)")
    parser.add_argument("--stock", action="store_true", help="train without Sentinel, and without a cap")
    chosen = parser.parse_args()
    if not chosen.stock:
        sentinel.start_profile(cap=chosen.cap, slow=chosen.slow)  # before the model is built
    model = train(chosen.steps)
    print(f"parameters {digest_of(model)}")
    common.finish(common.Options(stock=chosen.stock, report=chosen.report))


if __name__ == "__main__":
    main()
