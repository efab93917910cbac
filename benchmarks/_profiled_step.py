"""Child of profiling.py: one training process whose steps are, in turn, stock and profiled by each page tracker."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import transformers

from sentinel.core.trace import Phase
from sentinel.migration.adopt import adopt
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate, ticks
from sentinel.profiler.pages import AddressRange, PageSamples, PageTracker, make
from sentinel.system import native

PLAIN, EXCLUSIVE = "stock", "exclusive"


class Marks:
    """Takes ticks: each ends a layer for the allocator and for the tracker, if there is one."""

    def __init__(self, memory: ManagedMemory, tracker: PageTracker | None) -> None:
        self._memory, self._tracker, self.layer = memory, tracker, 0

    def tick(self, name: str, phase: Phase, source: str) -> None:
        del name, phase, source
        self.layer += 1
        self._memory.tick(self.layer)
        if self._tracker is not None:
            self._tracker.mark(self.layer)

    def step_boundary(self) -> None:
        return None


Job = tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]


def gpt2(layers: int, width: int, rows: int, columns: int) -> Job:
    """The model of `layers`×`width`, AdamW, and a batch of `rows`×`columns` tokens."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_positions=columns, n_head=width // 64)
    model = transformers.GPT2LMHeadModel(config).train()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randint(config.vocab_size, (rows, columns))


def lasting(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """All that lives from step to step, by name; gradients do not: the step frees them."""
    for name, parameter in model.named_parameters():
        yield name, parameter
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield f"{name}.{key}", value
    yield from model.named_buffers()


def timed_step(step: Callable[[], float]) -> dict[str, Any]:
    """One step's wall time and processor time (of all threads) in ns, and its loss."""
    gc.collect()
    began, cpu = time.perf_counter_ns(), time.process_time_ns()
    loss = step()
    return {"step_ns": time.perf_counter_ns() - began, "cpu_ns": time.process_time_ns() - cpu, "loss": loss}


def profiled(variant: str, memory: ManagedMemory, step: Callable[[], float]) -> dict[str, Any]:
    """One step in the profiling arena, page touches watched unless the variant is EXCLUSIVE."""
    arena = native.Range()
    native.check("sn_exclusive_range", native.library().sn_exclusive_range(arena))
    tracker = None if variant == EXCLUSIVE else make(variant)
    began = time.perf_counter_ns()
    memory.record()
    if tracker is not None:
        tracker.start([AddressRange(arena.base, arena.base + arena.reserved_bytes)])
        tracker.mark(0)
    memory.tick(0)
    ticks.sink = Marks(memory, tracker)
    started = time.perf_counter_ns()
    result = timed_step(step)
    marks, ticks.sink = ticks.sink.layer, None
    stopping = time.perf_counter_ns()
    samples = tracker.stop() if tracker is not None else None
    stopped = time.perf_counter_ns()
    native.check("sn_exclusive_range", native.library().sn_exclusive_range(arena))
    memory.pass_through()
    result |= {"layers": marks, "start_ns": started - began, "stop_ns": stopped - stopping}
    return {**result, "arena_bytes": arena.used_bytes, **(_told(samples) if samples is not None else {})}


def _told(samples: PageSamples) -> dict[str, Any]:
    rows = samples.pages
    return {
        "touched_pages": len(rows),
        "written_pages": int((rows["writes"] == 1).sum()) if "writes" in samples.quality.sees else None,
        "read_pages": int((rows["reads"] == 1).sum()) if "reads" in samples.quality.sees else None,
        "distinct_pages": len(np.unique(rows["page"])),
        "lost": samples.quality.lost,
        "overhead_ns": samples.quality.overhead_ns,
        "notes": samples.quality.notes,
    }


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 4, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model, optimizer, tokens = gpt2(*chosen.shape)
    annotate.annotate(model, optimizer)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()  # type: ignore[no-any-return]

    for _ in range(2):
        step()
    memory = ManagedMemory.install()
    gc.collect()
    adopt(memory, list(lasting(model, optimizer)))
    rounds: list[dict[str, Any]] = []
    for turn in range(chosen.rounds):
        order = [PLAIN, *chosen.variants]
        order = order[turn % len(order) :] + order[: turn % len(order)]
        rounds.append({})
        for variant in order:
            if variant == PLAIN:
                rounds[-1][variant] = timed_step(step)
            else:
                rounds[-1][variant] = profiled(variant, memory, step)
    print(json.dumps({"rounds": rounds}))


if __name__ == "__main__":
    main()
