"""Child of profiling.py: one training process whose steps are, in turn, stock and profiled by each page tracker."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from sentinel.core.trace import Phase
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.adopt import adopt
from sentinel.migration.memory import ALLOC, FALLBACK, FOREIGN, FREE, SMALL, ManagedMemory
from sentinel.profiler import annotate
from sentinel.profiler.pages import AddressRange, PageSamples, PageTracker, make, native_touch
from sentinel.profiler.record import StepRecorder
from sentinel.runtime import RUNTIME

PLAIN, EXCLUSIVE, OPS = "stock", "exclusive", "ops"
PACKED = 64  # bytes: torch's alignment


class Marks:
    """Takes ticks: each ends a layer for the recorder, the allocator and the tracker, as far as there are any."""

    def __init__(self, memory: ManagedMemory, tracker: PageTracker | None, recorder: StepRecorder | None) -> None:
        self._memory, self._tracker, self._recorder, self.layer = memory, tracker, recorder, 0

    def tick(self, name: str, phase: Phase, source: str) -> None:
        del name, phase, source
        if self._recorder is not None:
            self._recorder.tick(self.layer)
        self.layer += 1
        self._memory.tick(self.layer)
        if self._tracker is not None:
            self._tracker.mark(self.layer)
        if self._recorder is not None:
            self._recorder.resume()

    def step_boundary(self) -> None:
        return None


Job = tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]


def gpt2(layers: int, width: int, rows: int, columns: int, vocabulary: int = 50_257) -> Job:
    """The model of `layers`×`width`, AdamW, and a batch of `rows`×`columns` tokens of so many."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        bos_token_id=vocabulary - 1,
        eos_token_id=vocabulary - 1,
        n_layer=layers,
        n_embd=width,
        n_positions=columns,
        n_head=width // 64,
    )
    model = transformers.GPT2LMHeadModel(config).train()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randint(config.vocab_size, (rows, columns))


def training_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor
) -> Callable[[], float]:
    """What trains one step and returns its loss."""

    def step() -> float:
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()  # type: ignore[no-any-return]

    return step


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


def profiled(
    variant: str, memory: ManagedMemory, lasting_nbytes: Sequence[int], step: Callable[[], float]
) -> dict[str, Any]:
    """One step in the profiling arena: bare (EXCLUSIVE), watched by operators (OPS), and by a page tracker too."""
    tracker = None if variant in (EXCLUSIVE, OPS) else make(variant)
    recorder = None if variant == EXCLUSIVE else StepRecorder()
    base, _, reserved = memory.exclusive_extent()
    began = time.perf_counter_ns()
    memory.record()
    if recorder is not None:
        recorder.start()
    if tracker is not None:
        tracker.start([AddressRange(base, base + reserved)])
        tracker.mark(0)
    memory.tick(0)
    RUNTIME.sink = marks = Marks(memory, tracker, recorder)
    started = time.perf_counter_ns()
    result = timed_step(step)
    RUNTIME.sink = None
    stopping = time.perf_counter_ns()
    if recorder is not None:
        recorder.abandon()
    samples = tracker.stop() if tracker is not None else None
    result |= {"start_ns": started - began, "stop_ns": time.perf_counter_ns() - stopping, "layers": marks.layer}
    if variant == EXCLUSIVE:
        result["memory"] = exclusivity(memory, lasting_nbytes)
    memory.pass_through()
    return {**result, **(_told(samples) if samples is not None else {})}


def exclusivity(memory: ManagedMemory, lasting_nbytes: Sequence[int]) -> dict[str, Any]:
    """The step's peak of managed bytes, packed as by malloc and each tensor on pages of its own, and the arena's."""
    lasting = {unit: sum(-(-nbytes // unit) * unit for nbytes in lasting_nbytes) for unit in (PACKED, PAGE_BYTES)}
    now, peak = dict(lasting), dict(lasting)
    born: dict[int, int] = {}
    for event in memory.events():
        address, sign = int(event["address"]), 1 if event["kind"] == ALLOC else -1
        if event["kind"] == ALLOC and not event["flags"] & (SMALL | FALLBACK | FOREIGN):
            born[address] = nbytes = int(event["nbytes"])
        else:
            nbytes = born.pop(address, 0) if event["kind"] == FREE else 0
        for unit in now:
            now[unit] += sign * -(-nbytes // unit) * unit
            peak[unit] = max(peak[unit], now[unit])
    return {
        "peak_bytes": peak[PACKED],
        "peak_exclusive_bytes": peak[PAGE_BYTES],
        "overhead": peak[PAGE_BYTES] / peak[PACKED] - 1,
        "lasting_bytes": lasting[PACKED],
        "lasting_exclusive_bytes": lasting[PAGE_BYTES],
        "arena_bytes": memory.exclusive_extent()[1],
    }


def _told(samples: PageSamples) -> dict[str, Any]:
    rows = samples.pages
    state = native_touch.touch_state()
    return {
        "touched_pages": len(rows),
        "written_pages": int((rows["writes"] == 1).sum()) if "writes" in samples.quality.sees else None,
        "read_pages": int((rows["reads"] == 1).sum()) if "reads" in samples.quality.sees else None,
        "distinct_pages": len(np.unique(rows["page"])),
        "lost": samples.quality.lost,
        "overhead_ns": samples.quality.overhead_ns,
        "granularity_bytes": samples.quality.granularity_bytes,
        "notes": samples.quality.notes,
        "resting": {
            "overhead": state.held_peak_bytes / state.live_peak_bytes - 1,
            "given_up_bytes": int(state.given_up_bytes),
        },
    }


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", default=[PLAIN])
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 4, 256])
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model, optimizer, tokens = gpt2(*chosen.shape)
    annotate.annotate(model, optimizer)

    step = training_step(model, optimizer, tokens)
    for _ in range(2):
        step()
    memory = ManagedMemory.install()
    gc.collect()
    adopted = adopt(memory, list(lasting(model, optimizer)))
    lasting_nbytes = [row.nbytes for row in adopted if row.moved]
    runs = {
        variant: timed_step(step) if variant == PLAIN else profiled(variant, memory, lasting_nbytes, step)
        for variant in chosen.variants
    }
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
