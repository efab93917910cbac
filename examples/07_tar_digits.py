"""Digits in tar shards, read in torch's random order through a fifth of their size; killed, and gone on with.

Prints the losses of a run, and of one that is killed in the second epoch and goes on from its last checkpoint with
another number of workers: they are the same bit for bit.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sentinel.data

SHARDS, EPOCHS, BATCH, EVERY = 8, 2, 64, 5


def pack(folder: Path) -> None:
    """Writes scikit-learn's digits as WebDataset has samples: an image `000000.npy` and its class `000000.cls`."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for shard, rows in enumerate(np.array_split(np.arange(len(digits.images)), SHARDS)):
        with tarfile.open(folder / f"digits-{shard}.tar", "w") as tar:
            for row in rows.tolist():
                image = io.BytesIO()
                np.save(image, digits.images[row].astype(np.float32))
                for name, content in (("npy", image.getvalue()), ("cls", b"%d" % digits.target[row])):
                    member = tarfile.TarInfo(f"{row:06d}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def decode(sample: dict[str, Any]) -> tuple[Tensor, int]:
    """(1, 8, 8) float32 in [-1, 1] and the class."""
    image = np.load(io.BytesIO(sample["npy"]), allow_pickle=False)
    return torch.from_numpy(image)[None] / 8 - 1, int(sample["cls"])


def train(folder: Path, *, workers: int = 0, killed_at: int = -1, resume: bool = False) -> tuple[list[float], float]:
    """(losses of the steps that were made here, reads a chunk). Saves a checkpoint in every EVERY steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pattern = f"{folder}/digits-{{0..{SHARDS - 1}}}.tar"
    loader = sentinel.data.loader(pattern, decode, batch_size=BATCH, memory="20%", workers=workers, seed=1, unit=16)
    checkpoint = folder / "checkpoint.pt"
    step = 0
    if resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    losses = []
    while loader.epoch < EPOCHS:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            print(f"step {step:3d}  loss {losses[-1]:.6f}", flush=True)
            step += 1
            if step % EVERY == 0:
                parts = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save({**parts, "step": step}, checkpoint)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    report = loader.report()
    loader.close()
    return losses, report.feed.reads_per_chunk


def main() -> int:
    """0 if the run that was killed goes on to the same losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="used by the run that is killed")
    parser.add_argument("--killed-at", type=int, default=-1, help="the step after which it ends by SIGKILL")
    options = parser.parse_args()
    if options.folder is not None:
        train(options.folder, workers=2, killed_at=options.killed_at)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack(folder)
        whole, reads = train(folder)
        killed_at = len(whole) * 2 // 3
        arguments = [sys.executable, __file__, "--folder", name, "--killed-at", str(killed_at)]
        code = subprocess.run(arguments, check=False).returncode
        print(
            f"killed after step {killed_at - 1} (exit code {code}); going on from the last checkpoint, without workers"
        )
        rest, _ = train(folder, resume=True)
        same = rest == whole[len(whole) - len(rest) :] and code == -signal.SIGKILL
        print(
            f"losses are {'the same bit for bit' if same else 'NOT the same'}: {len(rest)} of {len(whole)} steps again"
        )
        print(f"reads a chunk of 16 samples in an epoch: {reads:.2f}, where random access makes 16")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
