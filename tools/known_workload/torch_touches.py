"""A torch step whose touches are known, and a small GPT-2 step, under one page tracker: prints JSON.

    python tools/known_workload/torch_touches.py ebpf        (`stock`: neither tracker nor managed memory)

`known`: layers in which each page of four tensors was touched, read, written, and what is right. `gpt2`: digests of
who touched what (by offset in the arena, so that processes compare) and of the loss and the parameters.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from sentinel.core.trace import Phase
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.adopt import adopt
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate
from sentinel.profiler.pages import AddressRange, PageSamples, choose
from sentinel.runtime import RUNTIME
from sentinel.system import native

FLOATS = PAGE_BYTES // 4
ROWS = (2, 3, 5, 7, 11, 13)  # of the embedding: each row is a page


class Marks:
    """Each tick ends a layer."""

    def __init__(self, mark: Callable[[int], None]) -> None:
        self._mark, self._layer = mark, 0

    def tick(self, name: str, phase: Phase, source: str) -> None:
        del name, phase, source
        self._layer += 1
        self._mark(self._layer)

    def step_boundary(self) -> None:
        return None


class Watch:
    """Managed memory in recording mode, watched by a tracker from `begin` to `end`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.memory = ManagedMemory.install()
        arena = native.Range()
        native.check("sn_exclusive_range", native.library().sn_exclusive_range(arena))
        self.arena = AddressRange(arena.base, arena.base + arena.reserved_bytes)

    def begin(self) -> None:
        gc.collect()
        self._tracker = choose(self._name)[0]
        assert self._tracker is not None
        self.memory.record()
        self._tracker.start([self.arena])
        self.mark(0)

    def mark(self, layer: int) -> None:
        self.memory.tick(layer)
        assert self._tracker is not None
        self._tracker.mark(layer)

    def end(self) -> PageSamples:
        assert self._tracker is not None
        samples = self._tracker.stop()
        self.memory.pass_through()
        return samples


def known(watch: Watch) -> dict[str, Any]:
    """Prime numbers of layers; reads and writes apart; a part of a tensor; rows of an embedding."""
    tensors = {
        "updated": torch.ones(7 * FLOATS),
        "read": torch.ones(11 * FLOATS),
        "partly": torch.ones(13 * FLOATS),
        "rows": torch.ones(101, FLOATS),
    }
    adopt(watch.memory, list(tensors.items()))
    index = torch.tensor(ROWS)
    watch.begin()
    for layer in range(29):
        watch.mark(layer)
        if layer < 23:
            tensors["updated"].add_(1)
        if layer < 19:
            tensors["read"].sum()
        if layer < 17:
            tensors["partly"][3 * FLOATS : 6 * FLOATS].fill_(layer)
        if layer < 5:
            nn.functional.embedding(index, tensors["rows"])
    samples = watch.end()
    right = {
        "updated": (dict.fromkeys(range(7), 23), dict.fromkeys(range(7), 23)),
        "read": (dict.fromkeys(range(11), 19), {}),
        "partly": ({}, dict.fromkeys((3, 4, 5), 17)),
        "rows": (dict.fromkeys(ROWS, 5), {}),
    }
    values = tensors["updated"].eq(24).all() and tensors["partly"].sum() == 10 * FLOATS + 3 * FLOATS * 16
    report = {name: _compare(samples, tensor, *right[name]) for name, tensor in tensors.items()}
    return {"tensors": report, "values_right": bool(values), "lost": samples.quality.lost}


def _compare(samples: PageSamples, tensor: torch.Tensor, reads: dict[int, int], writes: dict[int, int]) -> bool:
    first = tensor.data_ptr() // PAGE_BYTES
    rows = samples.pages
    rows = rows[(rows["page"] >= first) & (rows["page"] < first + tensor.nbytes // PAGE_BYTES)]
    pages = rows["page"] - first
    if "writes" not in samples.quality.sees:
        return Counter(pages.tolist()) == {**reads, **writes}
    seen_reads, seen_writes = Counter(pages[rows["reads"] == 1].tolist()), Counter(pages[rows["writes"] == 1].tolist())
    return seen_reads == reads and seen_writes == writes


def gpt2_step(watch: Watch | None) -> dict[str, Any]:
    """Two steps of a small GPT-2, the second one watched."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=128, n_head=2, n_positions=64, vocab_size=509, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(config.vocab_size, (2, 64))
    result: dict[str, Any] = {}

    def step() -> float:
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()  # type: ignore[no-any-return]

    annotate.annotate(model, optimizer)
    losses = [step()]
    if watch is not None:
        adopt(watch.memory, list(model.named_parameters()))
        watch.begin()
        RUNTIME.sink = Marks(watch.mark)
    losses.append(step())
    if watch is not None:
        RUNTIME.sink = None
        samples = watch.end()
        rows = samples.pages
        touched = np.stack([rows["layer"], rows["page"] - watch.arena.start // PAGE_BYTES])
        result = {"touches": len(rows), "touched": _digest(touched), "lost": samples.quality.lost}
        if "writes" in samples.quality.sees:
            result["written"] = _digest(touched[:, rows["writes"] == 1])
    losses.append(step())
    parameters = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    return {**result, "losses": [loss.hex() for loss in losses], "parameters": _digest(parameters)}


def _digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker")
    name = parser.parse_args().tracker
    torch.set_num_threads(2)
    torch.ones(1).sqrt()  # MKL's first call by two threads at once may compute with 12 bits, without Sentinel too
    watch = None if name == "stock" else Watch(name)
    told = {"gpt2": gpt2_step(watch), **({"known": known(watch)} if watch is not None else {})}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
