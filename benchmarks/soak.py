"""Does anything grow? A small model trains for many steps with migrations in every one of them.

    python benchmarks/soak.py [--steps 2000] [--slow emulated:cxl-asic-x8]

Prints JSON: at some steps the resident and managed bytes, open descriptors, mappings and threads of the process, the
Python objects alive, and how many migrations there were between the first and the last look. A run keeps the rows of
its first and last steps and totals of all, so its own memory is bounded too: `rows_kept`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sentinel
from sentinel.core.run import Run
from sentinel.system import native

WIDTH = 256
LOOKS = (0.1, 0.55, 1.0)
"""At which shares of all steps it looks: 200, 1,100 and 2,000 of 2,000."""


def look(step: int) -> dict[str, int]:
    """What the process holds now."""
    gc.collect()
    counters = native.Counters()
    native.library().sn_memory_counters(ctypes.byref(counters))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "RssFile")}
    return {
        "step": step,
        "resident_bytes": (kib["VmRSS"] - kib["RssFile"]) << 10,  # pages of files come and go with the page cache
        "managed_bytes": int(counters.live_bytes),
        "unmanaged_bytes": int(counters.unmanaged_live_bytes),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": len(os.listdir("/proc/self/task")),
        "objects": len(gc.get_objects()),
    }


def soak(steps: int, slow: str, fast: str) -> dict[str, Any]:
    """Trains for `steps` steps from the one on in which the plan is applied."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs, targets = torch.randn(16, WIDTH), torch.randint(0, 10, (16,))
    sentinel.annotate(model, optimizer)

    def step() -> None:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    sentinel.start_profile(model, optimizer, fast=fast, slow=slow, tracker="ops")
    step()
    sentinel.end_profile()
    when = {max(1, round(share * steps)) for share in LOOKS}
    looks = []
    for done in range(1, steps + 1):
        step()
        if done in when:
            looks.append(look(done))
            print(f"step {done} of {steps}", file=sys.stderr)
    run = sentinel.stop()
    return {"slow": slow, "fast": fast, "emulated": run.emulated, "looks": looks, **_of_run(run)}


def _of_run(run: Run) -> dict[str, Any]:
    every = run.steps["step"].tolist()
    moves = run.migrations
    moving = {step for step in every if (moves["moved_bytes"][moves["step"] == step] > 0).any()}
    return {
        "steps": run.counters.steps,
        "migrations": run.counters.migrations,
        "migrated_bytes": run.counters.migrated_bytes,
        "kept_steps": len(every),
        "kept_steps_with_migrations": len(moving),
        "rows_kept": {name: len(getattr(run, name)) for name in ("steps", "layers", "migrations", "events")},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--slow", default="emulated:cxl-asic-x8")
    parser.add_argument("--fast", default="40%")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    print(json.dumps(soak(options.steps, options.slow, options.fast), indent=1))
