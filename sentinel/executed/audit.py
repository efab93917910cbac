"""Where the kernel has a plan's blocks after each layer, held against where the plan says they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.units import PAGE_BYTES
from sentinel.executed.touches import Nodes, nodes_of

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
        self._plan, self._ranges, self._nodes = plan, ranges, nodes
        self._tier_nodes = [tier.node if tier.node is not None else -2 for tier in machine.tiers]
        self._moving = _moving(plan)

    def after(self, layer: int) -> None:
        """`layer` has ended; the migrations due before the next one may still be under way."""
        found, placed = self.found, self._plan.placement[:, layer]
        fast = 0
        for block in np.flatnonzero(placed >= 0).tolist():
            nodes = self._nodes_of(block)
            on_fast = int((nodes == self._tier_nodes[0]).sum()) * PAGE_BYTES
            present = int((nodes >= 0).sum()) * PAGE_BYTES
            fast += on_fast
            found.absent_bytes += len(nodes) * PAGE_BYTES - present
            if self._moving[block, layer]:
                found.moving_bytes += present
                continue
            right = int((nodes == self._tier_nodes[placed[block]]).sum()) * PAGE_BYTES
            found.as_planned_bytes += right
            found.elsewhere_bytes += present - right
            if present > right:
                key = (layer, block)
                self.worst[key] = max(self.worst.get(key, 0), present - right)
        found.fast_peak_bytes = max(found.fast_peak_bytes, fast)
        found.layers += 1

    def _nodes_of(self, block: int) -> NDArray[np.int32]:
        pages = [
            np.arange(address // PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES), dtype=np.uint64)
            for address, nbytes in self._ranges(block)
        ]
        every = np.concatenate(pages) if pages else np.empty(0, np.uint64)
        return self._nodes(every * np.uint64(PAGE_BYTES))


def _moving(plan: Plan) -> NDArray[np.bool_]:
    """(blocks, L) whether a migration of the block is under way in the layer, by the plan."""
    moving = np.zeros((len(plan.blocks), plan.n_layers), bool)
    for move in plan.migrations:
        moving[move.block, np.arange(move.start, move.due) % plan.n_layers] = True
    return moving
