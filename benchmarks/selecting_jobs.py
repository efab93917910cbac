"""What two jobs read that select by loss from the same files, each for itself and with one `share=`:
`python -m benchmarks.selecting_jobs > docs/selecting-jobs.json`.

Both train a network of one hidden layer on 1,200 of scikit-learn's digits, rows of an array, with other beginnings and
orders, in turns: one epoch of the first job, one of the second. Of its memory each needs some for marks, and for
samples on their way. Every sample is read by itself. Counted are the samples that came from no memory, from the third
epoch on, over those that were delivered. These are counts: the same on every host where torch rounds alike.
`python -m benchmarks.data_page` writes them into docs/data.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import sentinel.data
from benchmarks import _bench
from benchmarks.importance import BATCH, HIDDEN, TRAINED
from sentinel.data import Importance, ImportanceLoader

EPOCHS, SETTLED, MEMORY = 30, 2, "25%"


class Job:
    """One job: a model, and a loader of `rows`, (n, 65) float32 of images and labels."""

    def __init__(self, rows: Path, seed: int, share: str | None) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        options: dict[str, Any] = {"batch_size": BATCH, "memory": MEMORY, "unit": 1, "seed": 1000 * seed}
        made = sentinel.data.loader(str(rows), order=Importance(), share=share, **options)
        assert isinstance(made, ImportanceLoader)
        self.loader = made

    def epoch(self) -> tuple[int, int]:
        """Samples that it delivered, and how many of them were read."""
        before = self._counts()
        for batch in self.loader:
            images, labels = batch[:, :64] / 16, batch[:, 64].long()
            losses = nn.functional.cross_entropy(self.model(images), labels, reduction="none")
            self.optimizer.zero_grad()
            losses.mean().backward()
            self.optimizer.step()
            self.loader.report_losses(losses)
        samples, read = self._counts()
        return samples - before[0], read - before[1]

    def _counts(self) -> tuple[int, int]:
        feed = self.loader.report().feed
        return feed.samples, feed.source_reads + feed.direct_reads


def share_read(rows: Path, seed: int, epochs: int, share: str | None) -> float:
    """Samples read over samples delivered of both jobs, once what they hold has settled."""
    jobs = [Job(rows, 2 * seed + number, share) for number in range(2)]
    counts = np.array([[job.epoch() for job in jobs] for _ in range(epochs)])[SETTLED:].sum(axis=(0, 1))
    for job in jobs:
        job.loader.close()
    return float(counts[1] / counts[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object."""
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in one order
    digits = load_digits()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "digits.npy"
        np.save(rows, np.column_stack([digits.data, digits.target])[:TRAINED].astype(np.float32))
        runs = [
            {
                "alone": share_read(rows, seed, given.epochs, None),
                "shared": share_read(rows, seed, given.epochs, f"selecting-{os.getpid()}-{seed}"),
            }
            for seed in range(given.seeds)
        ]
    settings = {"samples": TRAINED, "epochs": given.epochs, "settled": SETTLED, "memory": MEMORY, "seeds": given.seeds}
    _bench.emit("jobs that select from the same files read less with one share=", {"settings": settings}, runs)


if __name__ == "__main__":
    main()
