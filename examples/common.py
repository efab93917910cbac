"""What the examples share: options, data that ships with Python and scikit-learn, and the last lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn

import sentinel

PROFILED_STEP = 1
"""The second step: the first one creates the optimizer's state."""


class Job(TypedDict):
    """What `sentinel estimate` asks for. `step()` trains one step, and gives its loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], Tensor]


@dataclass(frozen=True)
class Options:
    """`stock`: train without Sentinel. `fast`, `slow`: as `sentinel.start_profile` takes them."""

    steps: int = 8
    fast: str = "20%"
    slow: str = "auto"
    stock: bool = False
    report: str | None = None
    scale: str = "full"

    @property
    def small(self) -> bool:
        """Whether to train a model of 70 to 200 MiB: for machines that are emulated in software."""
        return self.scale == "small"

    def begins(self, step: int) -> bool:
        """Whether `step` is the one to profile."""
        return step == PROFILED_STEP and not self.stock


def options(description: str | None) -> Options:
    """The options on the command line."""
    default = Options()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=default.steps, help="training steps (default %(default)s)")
    parser.add_argument(
        "--fast", default=default.fast, help="fast memory, such as 20%% or 512MiB (default %(default)s)"
    )
    parser.add_argument("--slow", default=default.slow, help="slow tier, such as numa:1 or emulated:cxl-asic-x8")
    parser.add_argument("--report", help="write the report here (.html, .json, .csv, .txt)")
    parser.add_argument("--stock", action="store_true", help="train without Sentinel")
    parser.add_argument(
        "--scale", choices=("full", "small"), default=default.scale, help="size of the model (default %(default)s)"
    )
    return Options(**vars(parser.parse_args()))


def show(step: int, loss: Tensor) -> float:
    """Print the loss of a step, and return it."""
    print(f"step {step:3d}  loss {loss.item():.6f}", flush=True)
    return loss.item()


def finish(options: Options) -> None:
    """Print the report of a run, and write it where that was asked for."""
    if options.stock:
        return
    report = sentinel.report()
    print(report.text())
    if options.report:
        report.write(options.report)
        print(options.report)


def text_batches(rows: int, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, targets) without end, both (rows, columns) int64: bytes of the English text in Python's own help."""
    from pydoc_data.topics import topics

    text = torch.frombuffer(bytearray("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.uint8)
    pick = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(text) - columns - 1, (rows,), generator=pick)
        chunks = torch.stack([text[start : start + columns + 1] for start in starts.tolist()]).long()
        yield chunks[:, :-1].contiguous(), chunks[:, 1:].contiguous()


def digit_batches(rows: int, pixels: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(images, labels) without end: (rows, 1, pixels, pixels) float32 in [-1, 1] and (rows,) int64; digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target, dtype=torch.int64)
    pick = torch.Generator().manual_seed(0)
    while True:
        rows_now = torch.randint(len(images), (rows,), generator=pick)
        yield torch.nn.functional.interpolate(images[rows_now], size=(pixels, pixels)), labels[rows_now]
