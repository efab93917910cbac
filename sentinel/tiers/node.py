"""A NUMA node of this host: pages move in place, by move_pages, and addresses stay."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.tiers.tier import NODE, HeldBlock, Job, Tier


class NodeTier(Tier):
    """On the node of its spec; the fast tier is on the node of its own. Pages are born where the policy of their arena
    says."""

    holds_pages = True

    def __init__(self, machine: Machine, index: int, bytes_per_s: int = 0) -> None:
        here, fast = machine.tiers[index].node, machine.fast.node
        if here is None or fast is None:
            raise UsageError(f"machine {machine.name}: a tier on a node has no node number", "give both tiers a node")
        super().__init__(machine, index, bytes_per_s)
        self._here, self._fast = here, fast

    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """(m,) zeros: this memory takes its own time."""
        return np.zeros(len(uses), np.int64)

    def job(self, block: HeldBlock, source: int, target: int) -> Job:
        """See Tier."""
        return Job(
            source,
            target,
            block.nbytes,
            block.held,
            kind=NODE,
            node=self._fast if target == self._machine.hub else self._here,
            spans=block.ranges(),
            bytes_per_s=self._bytes_per_s,
        )
