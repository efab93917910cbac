"""Where the kernel has a plan's blocks after each layer, held against where the plan says they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES
from sentinel.executed.tensor_room import Nodes
from sentinel.system.numa import nodes_of

Ranges = Callable[[int], list[tuple[int, int]]]


@dataclass
class Found:
    """Bytes added up over the layers looked at.

    `as_planned_bytes`, `elsewhere_bytes`: of blocks at rest, on the node that the plan says, or on another one.
    `moving_bytes`: of blocks between the start of a migration and the layer it is due before: either node is right.
    `absent_bytes`: pages of live blocks that no one has touched yet. `fast_peak_bytes`: most managed bytes on the
    fast node after any one layer. `layers`: how many were looked at.
    """

    as_planned_bytes: int = 0
    elsewhere_bytes: int = 0
    moving_bytes: int = 0
    absent_bytes: int = 0
    fast_peak_bytes: int = 0
    layers: int = 0

    @property
    def share(self) -> float | None:
        """Of the managed bytes present, moving ones included, the share where the plan allows them to be."""
        right = self.as_planned_bytes + self.moving_bytes
        total = right + self.elsewhere_bytes
        return right / total if total else None


class Audit:
    """Looks at all live blocks of `plan` after a layer; `ranges(block)`: its (address, nbytes) pieces here."""

    def __init__(self, plan: Plan, machine: Machine, ranges: Ranges, nodes: Nodes = nodes_of) -> None:
        self.found = Found()
        self.worst: dict[tuple[int, int], int] = {}
        """(layer, block) -> most bytes of it found elsewhere."""
        self._placement, self._moving, self._nodes = plan.placement, _moving(plan), nodes
        self._tier_nodes = np.array([tier.node if tier.node is not None else -2 for tier in machine.tiers], np.int32)
        pages = [_pages(ranges(block)) for block in range(len(plan.blocks))]
        self._pages = np.concatenate([np.empty(0, np.uint64), *pages])
        self._owner = np.repeat(np.arange(len(pages)), [len(part) for part in pages])

    def after(self, layer: int) -> None:
        """`layer` has ended; the migrations due before the next one may still be under way."""
        placed = self._placement[self._owner, layer]
        alive = placed >= 0
        owner, wanted = self._owner[alive], self._tier_nodes[placed[alive]]
        nodes = self._nodes(self._pages[alive])
        present, moving = nodes >= 0, self._moving[owner, layer]
        wrong = present & ~moving & (nodes != wanted)
        found = self.found
        found.absent_bytes += _bytes(~present)
        found.moving_bytes += _bytes(present & moving)
        found.elsewhere_bytes += _bytes(wrong)
        found.as_planned_bytes += _bytes(present & ~moving & ~wrong)
        found.fast_peak_bytes = max(found.fast_peak_bytes, _bytes(nodes == self._tier_nodes[0]))
        found.layers += 1
        for block, pages in Counter(owner[wrong].tolist()).items():
            key = (layer, block)
            self.worst[key] = max(self.worst.get(key, 0), pages * PAGE_BYTES)


def _bytes(chosen: NDArray[np.bool_]) -> int:
    return int(chosen.sum()) * PAGE_BYTES


def _pages(ranges: list[tuple[int, int]]) -> NDArray[np.uint64]:
    """Addresses of the pages of `ranges` of (address, nbytes)."""
    parts = [np.arange(a // PAGE_BYTES, -(-(a + n) // PAGE_BYTES), dtype=np.uint64) for a, n in ranges]
    return np.concatenate([np.empty(0, np.uint64), *parts]) * np.uint64(PAGE_BYTES)


def _moving(plan: Plan) -> NDArray[np.bool_]:
    """(blocks, L) whether a migration of the block is under way in the layer, by the plan."""
    moving = np.zeros((len(plan.blocks), plan.n_layers), bool)
    for move in plan.migrations:
        moving[move.block, np.arange(move.start, move.due) % plan.n_layers] = True
    return moving
