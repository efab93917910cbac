"""Where stock PyTorch would have put the tensors of a recorded step, and which pages they would have shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.false_sharing import PLACED_DTYPE, FalseSharing, false_sharing
from sentinel.core.trace import BORN, READ, WRITE, TensorInfo
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.merge import ALLOC, Allocations, Step, of_step
from sentinel.system.malloc_replay import replay

HOW = (
    "replayed: after the step, this process's malloc was asked for the tensors that outlive it, then twice for the"
    " step's own; what else a step allocates was not between them"
)
APART_BYTES = 32 << 20
"""glibc maps blocks from this size on by themselves (DEFAULT_MMAP_THRESHOLD_MAX): they share no page."""


@dataclass
class Blocks:
    """The blocks of a step, those that were there before it first, and the calls that make and free them.

    `stays`: address of a block that is where malloc had put it, else 0. `spans`: the stretches [first, stop) in which
    each is alive in part, -1: before the step, `n_stretches` + 1: after it too. `tensor`: its index in the Trace, -1 if
    it is one of many small ones that stand together there.
    """

    n_stretches: int
    nbytes: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    tensor: list[int] = field(default_factory=list)
    stays: list[int] = field(default_factory=list)
    before: int = 0
    calls: list[tuple[int, int]] = field(default_factory=list)

    def add(self, nbytes: int, stretch: int, tensor: int, stays: int = 0) -> int:
        """The index of a block alive from `stretch` on."""
        self.nbytes.append(nbytes)
        self.stays.append(stays)
        self.spans.append((stretch, self.n_stretches + 1))
        self.tensor.append(tensor)
        return len(self.nbytes) - 1

    def end(self, block: int, stretch: int) -> None:
        """It is freed in `stretch`."""
        self.spans[block] = (self.spans[block][0], stretch + 1)


def stock_sharing(
    step: Step, allocations: NDArray[Any], tensors: Sequence[TensorInfo], events: NDArray[Any]
) -> FalseSharing:
    """The false sharing of the step under stock allocation, by replay. Arguments as for `merge`, and its results.

    A tensor is used in a layer where an operator names it. Raises CapabilityError where nothing can be replayed.
    """
    blocks = blocks_of(step, allocations, tensors, events)
    addresses = replay(np.array(two_rounds(blocks), np.int64).reshape(-1, 2))
    return false_sharing(*placed(step, blocks, addresses, events), len(step.ring), HOW)


def blocks_of(step: Step, allocations: NDArray[Any], tensors: Sequence[TensorInfo], events: NDArray[Any]) -> Blocks:
    """Every storage of the step, also the small ones that a Trace tells as one."""
    length = len(step.ring)
    blocks = Blocks(length + 1)
    born = set(events["tensor"][events["kind"] == BORN].tolist())
    live: dict[int, int] = {}
    for index, tensor in enumerate(tensors):
        if index not in born and tensor.nbytes > 0 and tensor.address:
            live[tensor.address] = blocks.add(tensor.nbytes, -1, index, 0 if tensor.managed else tensor.address)
    blocks.before = len(blocks.nbytes)
    of_key = {tensor.key: index for index, tensor in enumerate(tensors) if tensor.key is not None}
    log = Allocations(step, of_step(step, allocations))
    stretches = np.searchsorted(step.tick_seqs, log.seq).tolist()
    for at, kind in enumerate(log.kind):
        address, stretch = log.address[at], stretches[at]
        if kind != ALLOC:
            block = live.pop(address, None)
            if block is not None:
                blocks.end(block, stretch)
                blocks.calls.append((block, 0))
            continue
        if log.nbytes[at] == 0:  # no memory is asked for
            continue
        key = (step.first_layer + stretch) % length, log.ordinal[at]
        block = blocks.add(log.nbytes[at], stretch, of_key.get(key, -1) if key[1] >= 0 else -1)
        live[address] = block
        blocks.calls.append((block, log.nbytes[at]))
    return blocks


def two_rounds(blocks: Blocks) -> list[tuple[int, int]]:
    """What was there before, then the step twice; in between all is as before the step. The second round counts.

    Without blocks that are where they would be, and those that share no page.
    """
    freed = {block for block, nbytes in blocks.calls if not nbytes}
    before = [
        (block, nbytes)
        for block, nbytes in enumerate(blocks.nbytes[: blocks.before])
        if nbytes < APART_BYTES and (block in freed or not blocks.stays[block])
    ]
    step = [(block, nbytes) for block, nbytes in blocks.calls if blocks.nbytes[block] < APART_BYTES]
    left = [(block, 0) for block, nbytes in step if nbytes and block not in freed]
    again = [(block, nbytes) for block, nbytes in before if block in freed]
    return [*before, *step, *left, *again, *step]


def placed(
    step: Step, blocks: Blocks, addresses: NDArray[np.int64], events: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The blocks of PLACED_DTYPE, and which layers use which. `addresses`: of each call of `two_rounds`.

    A block that was not asked for, because it shares no page, has an address of its own far from all others.
    """
    calls = np.array(two_rounds(blocks), np.int64).reshape(-1, 2)
    length = len(step.ring)
    rows = np.zeros(len(blocks.nbytes), PLACED_DTYPE)
    rows["address"] = -(np.cumsum([-(-nbytes // PAGE_BYTES) for nbytes in blocks.nbytes]) * PAGE_BYTES)
    stays = np.array(blocks.stays, np.int64)
    rows["address"][stays > 0] = stays[stays > 0]
    made = calls[:, 1] > 0
    rows["address"][calls[made, 0]] = addresses[made]  # the last one holds
    rows["nbytes"] = blocks.nbytes
    # The first and the last stretch are one layer, which only what outlives the step lives through.
    spans = np.array(blocks.spans, np.int64).reshape(-1, 2)
    forever = (spans[:, 0] < 0) & (spans[:, 1] > blocks.n_stretches)
    begin = np.maximum(spans[:, 0] + 1, 1)
    through = np.maximum(np.minimum(spans[:, 1] - 1, length) - begin, 0)
    through[np.array(blocks.tensor, np.int64) < 0] = 0  # nothing tells that they were not used
    rows["start"] = np.where(forever, 0, (step.first_layer + begin) % length)
    rows["stop"] = np.where(forever, length, rows["start"] + through)
    return rows, _used(step, blocks, spans, events)


def _used(step: Step, blocks: Blocks, spans: NDArray[np.int64], events: NDArray[Any]) -> NDArray[np.int64]:
    """(m, 2) block and layer; a small one of many is used in the layer that it is born and freed in."""
    length = len(step.ring)
    tensor = np.array(blocks.tensor, np.int64)
    accesses = events[(events["kind"] == READ) | (events["kind"] == WRITE)]
    block_of = np.full(int(events["tensor"].max(initial=-1)) + 2, -1, np.int64)
    known = np.flatnonzero((tensor >= 0) & (tensor < len(block_of)))
    block_of[tensor[known]] = known
    named = np.stack([block_of[accesses["tensor"]], accesses["layer"].astype(np.int64)], axis=1)
    many = np.flatnonzero(tensor < 0)
    brief = np.stack([many, (step.first_layer + np.maximum(spans[many, 0], 0)) % length], axis=1)
    return np.unique(np.concatenate([named[named[:, 0] >= 0], brief]), axis=0)
