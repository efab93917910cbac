"""The process that benchmarks/forked_workers.py watches: trains, and forks its workers within one step.

    python -m benchmarks._forked_step stock|TRACKER fork|loader NBYTES WORKERS STEPS

Its last line is a JSON object: what each step took, and whether the workers read what they should have.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import sentinel

DEPTH = 8
TENSORS = 3  # a parameter, and AdamW's two for each
PLAIN = 2


class Reads(Dataset[float]):
    """Each item is read from all parameters, as a worker sees them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> float:
        return read(self._model)


def read(model: nn.Module) -> float:
    """The sum of all parameters, so that each of their pages is read."""
    with torch.no_grad():
        return float(sum(param.sum(dtype=torch.float64) for param in model.parameters()))


def by_fork(model: nn.Module, workers: int) -> Iterator[list[float]]:
    """Forks on the first call. What each worker has read; they live until this is closed."""
    children: list[tuple[int, int]] = []
    over_reading, over_writing = os.pipe()
    for _ in range(workers):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(over_writing)
            torch.set_num_threads(1)  # the threads of the operators have not come along
            os.write(writing, repr(read(model)).encode())
            os.close(writing)
            os.read(over_reading, 1)  # until the parent closes the other end
            os._exit(0)
        os.close(writing)
        children.append((child, reading))
    try:
        found = []
        for _, reading in children:
            with os.fdopen(reading) as pipe:
                found.append(float(pipe.read()))
        while True:
            yield found
    finally:
        os.close(over_writing)
        for child, _ in children:
            os.waitpid(child, 0)
        os.close(over_reading)


def by_loader(model: nn.Module, workers: int) -> Iterator[list[float]]:
    """Forks on the first call. What the next item of each worker says; a DataLoader's own workers."""
    loader: Any = DataLoader(
        Reads(model), batch_size=None, num_workers=workers, prefetch_factor=1, multiprocessing_context="fork"
    )
    items = iter(loader)
    while True:
        yield [float(next(items)) for _ in range(workers)]


FORKS: dict[str, Callable[[nn.Module, int], Iterator[list[float]]]] = {"fork": by_fork, "loader": by_loader}


def train(tracker: str, how: str, nbytes: int, workers: int, steps: int) -> dict[str, Any]:
    """`PLAIN` steps, one in which the workers are born, and `steps` in which they live."""
    torch.manual_seed(5)
    width = max(64, int((nbytes / (4 * TENSORS * DEPTH)) ** 0.5) // 64 * 64)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    asked = {"fast": "60%", "slow": "emulated:cxl-asic-x8", "tracker": tracker}
    step_ns: list[int] = []
    losses: list[float] = []
    readings: list[list[float]] = []

    def step(within: Callable[[], object] = lambda: None) -> None:
        began = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = model(torch.randn(16, width)).square().mean()
        loss.backward()
        within()
        optimizer.step()
        step_ns.append(time.perf_counter_ns() - began)
        losses.append(float(loss.detach()))

    born = FORKS[how](model, workers)
    with sentinel.annotate(model, optimizer):
        for _ in range(PLAIN):
            step()
        expected = read(model)
        began = time.perf_counter_ns()
        if tracker != "stock":
            sentinel.start_profile(model, optimizer, **asked)
        prepared_ns = time.perf_counter_ns() - began
        step(lambda: readings.append(next(born)))
        began = time.perf_counter_ns()
        if tracker != "stock":
            sentinel.end_profile()
        ended_ns = time.perf_counter_ns() - began
        for _ in range(steps):
            step()
        if tracker != "stock":
            sentinel.stop()
        born.close()  # type: ignore[attr-defined]
    right = readings == [[expected] * workers]
    held = TENSORS * 4 * DEPTH * width**2
    return {
        "held_bytes": held,
        "plain_step_ns": step_ns[PLAIN - 1],
        "forked_step_ns": step_ns[PLAIN],
        "later_step_ns": step_ns[PLAIN + 1 :],
        "start_profile_ns": prepared_ns,
        "end_profile_ns": ended_ns,
        "workers_read_the_parameters": right,
        "losses": [loss.hex() for loss in losses],
    }


def main() -> None:
    """See the module's docstring."""
    tracker, how, *numbers = sys.argv[1:]
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores, on purpose
    nbytes, workers, steps = map(int, numbers)
    print(json.dumps(train(tracker, how, nbytes, workers, steps)))


if __name__ == "__main__":
    main()
