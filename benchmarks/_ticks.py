"""Child of ticks.py: what a tick and an allocation take in an applied session. Prints one line of JSON.

It imports whichever `sentinel` comes first on PYTHONPATH and uses its public names only, so that older commits run it.
Every second layer is empty: at its tick nothing is born, dies or moves. The others hold allocations of one size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import sentinel

PROFILED_STEP, SETTLED = 2, 14  # a plan may be replaced in the first applied steps


class Times:
    """Nanoseconds of one step."""

    def __init__(self) -> None:
        self.empty: list[int] = []
        self.full: list[int] = []
        self.allocation: list[float] = []


def step(model: nn.Module, optimizer: torch.optim.Optimizer, layers: int, count: int, numel: int) -> Times:
    """One step of training with `layers` ticks before its backward; each full layer makes `count` tensors."""
    times, now = Times(), time.perf_counter_ns
    for layer in range(layers):
        if layer % 2:
            began = now()
            made = [torch.empty(numel) for _ in range(count)]
            times.allocation.append((now() - began) / count)
            del made
        began = now()
        sentinel.add_layer()
        (times.full if layer % 2 else times.empty).append(now() - began)
    model(torch.ones(8, 64)).square().mean().backward()
    sentinel.add_layer()
    optimizer.step()
    optimizer.zero_grad()
    sentinel.add_layer()
    return times


def main() -> None:
    """Train, print medians: without a session, and in applied steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--allocations", type=int, required=True)
    parser.add_argument("--numel", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of_steps = []
    for number in range(SETTLED + given.steps):
        if number == PROFILED_STEP:
            sentinel.start_profile(model, optimizer, fast="100%", slow="emulated:cxl-asic-x8", tracker="ops")
        of_steps.append(step(model, optimizer, given.layers, given.allocations, given.numel))
        if number == PROFILED_STEP:
            sentinel.end_profile()
    report = sentinel.report()
    assert report.headline["kind"] == "emulated", report.headline
    applied = of_steps[SETTLED:]
    told = {
        "sentinel": str(Path(sentinel.__file__).parents[1]),
        "empty_tick_ns": statistics.median(ns for each in applied for ns in each.empty),
        "full_tick_ns": statistics.median(ns for each in applied for ns in each.full),
        "allocation_ns": statistics.median(ns for each in applied for ns in each.allocation),
        "stock_allocation_ns": statistics.median(of_steps[PROFILED_STEP - 1].allocation),
    }
    sentinel.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
