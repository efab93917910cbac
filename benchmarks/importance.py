"""What selection by loss saves and costs on scikit-learn's digits: `python -m benchmarks.importance >
docs/importance.json`.

A network of one hidden layer is trained on 1,200 digits, of whose labels a share is wrong, and is tested on 597 others.
`full` delivers all samples in each epoch, `select` those that Importance draws, `unbiased` weights them, `substitute`
replaces the least important 30 % of them. Orders and plans are those of the loader; nothing is read, so hits and reads
are the same on every host, and accuracies wherever torch rounds alike. Hits: with memory for a fifth of the samples,
each of which is read alone, in the epochs from the second on; beside it what the same epochs hit where memory holds the
first fifth of the first epoch for good (never-evict). Reads: chunks of 16 over the number of chunks, a mean epoch.
All modes train the same model on the same digits and labels for a seed, so what a mode loses is the mean over seeds of
the difference to `full`, and its standard error that of the differences. `python -m benchmarks.data_page` writes the
table into docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench
from benchmarks._data_goals import NOISES
from benchmarks.data import say
from benchmarks.data_orders import permutation
from sentinel.samples import Importance, Layout, Room, narrowed, select, simulate, stage_selected

TRAINED, EPOCHS, BATCH, HIDDEN, CHUNK = 1200, 30, 32, 64, 16
MODES = {
    "full": Importance(beta=0.0),
    "select": Importance(),
    "unbiased": Importance(unbiased=True),
    "substitute": Importance(substitute=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in one order
    rows = []
    for noise in NOISES:
        runs: dict[str, list[dict[str, float]]] = {}
        for mode, importance in MODES.items():
            runs[mode] = [run(noise, importance, seed, given.epochs) for seed in range(given.seeds)]
            rows.append(row(noise, mode, runs[mode], runs["full"]))
            say(f"{noise:.0%} wrong labels, {mode}: {rows[-1]['accuracy']:.3f}")
    settings = {"samples": TRAINED, "epochs": given.epochs, "seeds": given.seeds, "room": 0.2, "chunk": CHUNK}
    claim = "selection by loss leaves a seventh of the samples out at no loss of accuracy"
    print(json.dumps(_bench.told(claim, {"settings": settings}, {"rows": rows})))


def row(noise: float, mode: str, runs: list[dict[str, float]], full: list[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, and the standard error of the accuracy; `lost`: by how much it is below that of `full`, seed by
    seed, in the mean, with the standard error of that."""
    found: dict[str, Any] = {"noise": noise, "mode": mode}
    for name in runs[0]:
        found[name] = statistics.fmean(one[name] for one in runs)
    lost = [of_all["accuracy"] - one["accuracy"] for one, of_all in zip(runs, full, strict=True)]
    accuracies = [one["accuracy"] for one in runs]
    told = {"accuracy_error": error(accuracies), "lost": statistics.fmean(lost), "lost_error": error(lost)}
    return {**found, **told, "accuracies": accuracies}


def error(values: Sequence[float]) -> float:
    """The standard error of their mean; 0 of a single one."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def run(noise: float, importance: Importance, seed: int, epochs: int) -> dict[str, float]:
    """Accuracy on what was not trained, and counts, of one training run."""
    from sklearn.datasets import load_digits

    digits, chance = load_digits(), np.random.default_rng(seed)
    mixed = chance.permutation(len(digits.target))
    images = torch.from_numpy(digits.data[mixed].astype(np.float32)) / 16
    labels = torch.from_numpy(digits.target[mixed].astype(np.int64))
    told = labels[:TRAINED].clone()
    wrong = chance.random(TRAINED) < noise
    told[wrong] = torch.from_numpy(chance.integers(0, 10, int(wrong.sum())))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    single, chunks = layout(1), layout(CHUNK)
    losses = np.full(TRAINED, np.nan, np.float16)
    delivered = substituted = later = hits = fixed_hits = reads = 0
    before: list[Any] = [None, None]
    following = permutation(TRAINED, seed * 1000)
    fixed = following[: TRAINED // 5]
    for epoch in range(epochs):
        now, following = following, permutation(TRAINED, seed * 1000 + epoch + 1)
        told_next = None if importance.substitute else following
        chosen = select(chunks, importance, epoch, seed * 1000 + epoch, now, losses)
        delivered += len(chosen.samples)
        substituted += int(chosen.substituted.sum())
        for number, where in enumerate((single, chunks)):
            last = None if before[number] is None else narrowed(before[number], now, chosen.samples)
            before[number] = stage_selected(where, room(where), chosen.samples, losses, told_next, last)
        reads += simulate(chunks, before[1]).source_reads
        if epoch:
            later += len(chosen.samples)
            hits += simulate(single, before[0]).hits
            fixed_hits += int(np.isin(chosen.samples, fixed).sum())
        losses = train(model, optimizer, images[:TRAINED], told, chosen, losses)
    with torch.no_grad():
        right = (model(images[TRAINED:]).argmax(1) == labels[TRAINED:]).float().mean().item()
    return {
        "accuracy": right,
        "delivered": delivered / (TRAINED * epochs),
        "substituted": substituted / delivered,
        "hits": hits / later,
        "never_evict_hits": fixed_hits / later,
        "reads_per_chunk": reads / chunks.n_chunks / epochs,
    }


def train(model: Any, optimizer: Any, images: Any, labels: Any, chosen: Any, losses: Any) -> Any:
    """An epoch; returns the losses with those of this epoch, which `losses` keeps as it was."""
    found = losses.copy()
    for begin in range(0, len(chosen.samples), BATCH):
        samples = chosen.samples[begin : begin + BATCH]
        each = nn.functional.cross_entropy(model(images[samples]), labels[samples], reduction="none")
        weights = torch.from_numpy(chosen.weights[begin : begin + BATCH].astype(np.float32))
        optimizer.zero_grad()
        (each * weights).mean().backward()
        optimizer.step()
        found[samples] = each.detach().numpy().astype(np.float16)
    return found


def layout(chunk: int) -> Layout:
    """The digits as they would lie in a file of rows, in chunks of `chunk`."""
    n, nbytes = TRAINED, 64
    at = np.arange(n, dtype=np.int64) * nbytes
    size, ends = np.full(n, nbytes, np.int64), np.array([n * nbytes], np.int64)
    one = Layout(
        "digits",
        ("digits",),
        ends,
        np.zeros(1, np.int64),
        np.zeros(1, np.int32),
        np.zeros(1, np.int64),
        ends,
        np.array([n], np.int32),
        at,
        size,
    )
    return one.cut(chunk)


def room(of: Layout) -> Room:
    """For a fifth of the samples, read one at a time."""
    return Room(of.nbytes // 5, 64)


if __name__ == "__main__":
    main()
