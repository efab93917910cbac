"""Digits in tar shards, of which each epoch delivers those that the model still gets wrong.

Prints samples delivered and accuracy of a run that delivers all samples in each epoch, and of one that selects by the
last loss of each. What is read for both: chunks of 16 samples, through a fifth of the memory that all would take.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import sentinel.data

tar_digits = importlib.import_module("07_tar_digits")

EPOCHS, BATCH = 8, 64


def train(pattern: str, order: sentinel.data.Importance) -> tuple[int, float, float]:
    """(samples delivered, share of the last epoch's that were classified right, reads a chunk)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = sentinel.data.loader(
        pattern, tar_digits.decode, batch_size=BATCH, memory="20%", seed=1, unit=16, order=order
    )
    assert isinstance(loader, sentinel.data.ImportanceLoader)
    for _ in range(EPOCHS):
        for images, labels in loader:
            losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
            loader.report_losses(losses)
            optimizer.zero_grad()
            (losses * loader.weights).mean().backward()
            optimizer.step()
    right = total = 0
    with torch.no_grad():
        for images, labels in sentinel.data.loader(pattern, tar_digits.decode, batch_size=256, memory="20%"):
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    feed = loader.report().feed
    loader.close()
    return feed.samples, right / total, feed.reads_per_chunk


def main() -> int:
    """0 if the run that selects was given fewer samples."""
    with tempfile.TemporaryDirectory() as name:
        tar_digits.pack(Path(name))
        pattern = f"{name}/digits-{{0..{tar_digits.SHARDS - 1}}}.tar"
        every, all_right, all_reads = train(pattern, sentinel.data.Importance(beta=0))
        some, right, reads = train(pattern, sentinel.data.Importance(beta=1, warm_up=2, reuse_factor=4))
    print(f"all samples:  {every} delivered in {EPOCHS} epochs, {all_reads:.2f} reads a chunk, {all_right:.1%} right")
    print(f"selected:     {some} delivered in {EPOCHS} epochs, {reads:.2f} reads a chunk, {right:.1%} right")
    return 0 if some < every else 1


if __name__ == "__main__":
    sys.exit(main())
