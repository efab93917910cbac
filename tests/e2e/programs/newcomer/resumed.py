"""Saved in the middle, resumed in place, and again into new objects from a mapped file."""

import hashlib
import os
import tempfile

import torch
from torch import nn


def made():
    """A model and its optimizer, always the same."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())])
    return model, torch.optim.AdamW(model.parameters())


def train(model, optimizer, steps):
    """So many steps."""
    for _ in range(steps):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())


if __name__ == "__main__":
    model, optimizer = made()
    train(model, optimizer, 6)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        train(model, optimizer, 2)
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        train(model, optimizer, 3)
        model, optimizer = made()
        kept = torch.load(path, mmap=True)
        model.load_state_dict(kept["model"], assign=True)
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(kept["optimizer"])
        train(model, optimizer, 6)
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
