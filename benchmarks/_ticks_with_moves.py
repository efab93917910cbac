"""Child of ticks.py: what a move costs the training thread. Prints one line of JSON.

It imports whichever `sentinel` comes first on PYTHONPATH and uses its public names only, so that older commits run it.
A network of many equal layers trains with too little fast memory, so that at its ticks weights move. Counted is the
processor time that the thread spends in ticks, not what it waits there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import sentinel

PROFILED_STEP, SETTLED = 2, 14  # a plan may be replaced in the first applied steps


def step(model: nn.ModuleList, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> tuple[int, int]:
    """One step of training: processor time of its ticks in ns, and how many there were."""
    spent, ticks, now = 0, 0, time.thread_time_ns

    def tick() -> None:
        nonlocal spent, ticks
        began = now()
        sentinel.add_layer()
        spent += now() - began
        ticks += 1

    for layer in model:
        x = torch.relu(layer(x))
        tick()
    x.square().mean().backward()
    tick()
    optimizer.step()
    optimizer.zero_grad()
    tick()
    return spent, ticks


def main() -> None:
    """Train, print what ticks with moves took, and how many moves there were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.ModuleList(nn.Linear(given.width, given.width) for _ in range(given.layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(64, given.width)
    spent = ticks = 0
    for number in range(SETTLED + given.steps):
        if number == PROFILED_STEP:
            sentinel.start_profile(model, optimizer, fast="40%", slow="emulated:cxl-asic-x8", tracker="ops")
        took, ticked = step(model, optimizer, x)
        if number >= SETTLED:
            spent, ticks = spent + took, ticks + ticked
        if number == PROFILED_STEP:
            sentinel.end_profile()
    run = sentinel.stop()
    assert run is not None
    assert run.counters.migrations, "nothing moved"
    a_step = run.counters.migrations / run.counters.steps
    told = {
        "sentinel": str(Path(sentinel.__file__).parents[1]),
        "tick_with_moves_ns": spent / ticks,
        "move_ns": spent / (a_step * given.steps),
        "moves_a_step": a_step,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
