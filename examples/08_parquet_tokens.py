"""Tokens in Parquet, read in torch's random order through 5, 20 and 50 % of their size; the losses are the same.

The texts of Python's own help topics, a byte a token, are rows of a Parquet file with 64 rows a group. A row group is
decoded as a whole, so reading rows in random order decodes one group a row, and a cache of the groups used last (LRU)
hardly fewer. Prints what a loader reads instead, with each amount of memory.
"""

from __future__ import annotations

import pydoc_data.topics
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import sentinel.data

LENGTH, STEP, GROUP, EPOCHS, BATCH, SEED = 512, 64, 64, 2, 64, 1


def write_tokens(path: Path) -> int:
    """Writes rows of LENGTH + 1 tokens, uint8; returns how many. A row begins each STEP tokens."""
    topics = pydoc_data.topics.topics
    text = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::STEP]
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), LENGTH + 1)
    pq.write_table(pa.table({"tokens": tokens}), path, row_group_size=GROUP, compression="zstd")
    return len(rows)


def decode(row: dict[str, np.ndarray]) -> Tensor:
    """(LENGTH + 1,) int64"""
    return torch.from_numpy(row["tokens"].astype(np.int64))


def train(path: Path, memory: str) -> tuple[list[float], list[float]]:
    """(losses, reads of a row group in each epoch) of a model that predicts the next token from the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = sentinel.data.loader(path, decode, batch_size=BATCH, memory=memory, workers=1, seed=SEED)
    losses, reads = [], []
    for _ in range(EPOCHS):
        for tokens in loader:
            tokens = tokens[:, -STEP - 1 :]  # what no row before it has
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        reads.append(loader.report().epoch.reads_per_chunk)
    loader.close()
    return losses, reads


def lru_reads(rows: int, share: float) -> float:
    """Reads of a row group in the second epoch of the same order, with the groups used last in as much memory."""
    groups = -(-rows // GROUP)
    room, held, reads = max(1, int(share * groups)), OrderedDict[int, None](), 0
    for epoch in range(2):
        reads = 0
        for row in torch.randperm(rows, generator=torch.Generator().manual_seed(SEED + epoch)).tolist():
            group = row // GROUP
            reads += group not in held
            held[group] = None
            held.move_to_end(group)
            if len(held) > room:
                held.popitem(last=False)
    return reads / groups


def main() -> int:
    """0 if the losses are the same whatever the memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.parquet"
        rows = write_tokens(path)
        print(f"{rows} rows of {LENGTH + 1} tokens in {-(-rows // GROUP)} row groups of {GROUP}")
        print("memory  reads of a row group: first epoch, second epoch, with the groups used last")
        losses = {}
        for memory in ("5%", "20%", "50%"):
            losses[memory], (first, second) = train(path, memory)
            beside = lru_reads(rows, float(memory[:-1]) / 100)
            print(f"{memory:>6}  {first:21.2f}  {second:13.2f}  {beside:24.1f}", flush=True)
    same = all(found == losses["5%"] for found in losses.values())
    last, said = losses["5%"][-1], "the same" if same else "NOT the same"
    print(f"losses of {len(losses['5%'])} steps, the last {last:.4f}: {said} bit for bit")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
