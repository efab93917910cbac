"""Child of gpt2_large.py: trains a large GPT-2 stock or under Sentinel; prints losses, a digest and times as JSON."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks._stepper import peak_rss_bytes

PIECE_BYTES = 1 << 30
WATCHED = 1  # the step that is profiled: by then the optimizer has its state


def gpt2(layers: int, width: int, heads: int, columns: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A GPT-2 with random weights, and one row of tokens."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=columns)
    return transformers.GPT2LMHeadModel(config).train(), torch.randint(config.vocab_size, (1, columns))


def copy_ns(nbytes: int) -> int:
    """Time of a plain copy of so many bytes to memory never touched before, a piece at a time."""
    spent = 0
    source = torch.ones(PIECE_BYTES // 4)
    for at in range(0, nbytes, PIECE_BYTES):
        length = min(PIECE_BYTES, nbytes - at) // 4
        began = time.perf_counter_ns()
        torch.empty(length).copy_(source[:length])
        spent += time.perf_counter_ns() - began
    return spent


def digest(model: torch.nn.Module) -> str:
    """SHA-256 of all parameters and buffers, in order."""
    found = hashlib.sha256()
    for tensor in [*model.parameters(), *model.buffers()]:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentinel", action="store_true")
    parser.add_argument("--shape", type=int, nargs=4, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--fast", default="30%")
    parser.add_argument("--tracker", default="auto")
    parser.add_argument(
        "--copy-bytes", type=int, default=0, help="time a plain copy of so many bytes, and nothing else"
    )
    chosen = parser.parse_args()
    if chosen.copy_bytes:
        print(json.dumps({"copy_ns": copy_ns(chosen.copy_bytes)}))
        return
    model, tokens = gpt2(*chosen.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    told: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    if chosen.sentinel:
        import sentinel

        sentinel.annotate(model, optimizer)
    losses, times = [], []
    for step in range(chosen.steps):
        if chosen.sentinel and step == WATCHED:
            sentinel.start_profile(fast=chosen.fast, slow="emulated:cxl-asic-x8", tracker=chosen.tracker)
        began = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter_ns() - began)
        if chosen.sentinel and step == WATCHED:
            sentinel.end_profile()
    if chosen.sentinel:
        told["headline"] = dict(sentinel.report().headline)
        sentinel.stop()
    told |= {"losses": losses, "step_ns": times, "digest": digest(model), "peak_rss_bytes": peak_rss_bytes()}
    told["memory_bytes"] = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    print(json.dumps(told))


if __name__ == "__main__":
    main()
