"""A NUMA node of this host: pages move in place, by move_pages, and addresses stay."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine, TierSpec
from sentinel.system import numa
from sentinel.tiers.tier import FAST, HeldBlock, Job, Mover, Transfer


class NodeTier:
    """Tier `index` of `machine`, on the node of its spec; the fast tier is on the node of its own.

    `bytes_per_s`: migrations go no faster than this, 0 for no limit.
    """

    def __init__(self, machine: Machine, index: int, mover: Mover, *, bytes_per_s: int = 0) -> None:
        here, fast = machine.tiers[index].node, machine.fast.node
        if here is None or fast is None:
            raise UsageError(f"machine {machine.name}: a tier on a node has no node number", "give both tiers a node")
        self._machine, self._index, self._mover = machine, index, mover
        self._here, self._fast, self._bytes_per_s = here, fast, bytes_per_s

    @property
    def spec(self) -> TierSpec:
        """What it is and what it costs."""
        return self._machine.tiers[self._index]

    @property
    def holds_pages(self) -> bool:
        """Pages are on this node: True."""
        return True

    @property
    def takes_unplanned_births(self) -> bool:
        """Pages are born where the policy of their arena says: False."""
        return False

    @property
    def used_in_place(self) -> bool:
        """As the machine says."""
        return self.spec.addressable

    def room_bytes(self) -> int:
        """Bytes that it could still take in."""
        return max(self.spec.capacity_bytes - self._mover.bytes_in(self._index), 0)

    def admit(self, block: HeldBlock, after: int = 0, *, source: int = FAST, first: bool = False) -> Transfer:
        """Begin to move the pages of `block` to this node."""
        return self._submit(source, self._index, block, after, first=first)

    def recall(self, block: HeldBlock, after: int = 0) -> Transfer:
        """Begin to move the pages of `block` to the fast node."""
        return self._submit(self._index, FAST, block, after)

    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """(m,) zeros: this memory takes its own time."""
        return np.zeros(len(uses), np.int64)

    def bind(self, address: int, nbytes: int) -> None:
        """Pages of [address, address + nbytes) are born here, and automatic NUMA balancing leaves them alone."""
        numa.bind(address, nbytes, self._here)

    def close(self) -> None:
        """Nothing to let go of."""

    def _submit(self, source: int, target: int, block: HeldBlock, after: int, *, first: bool = False) -> Transfer:
        job = Job(
            source,
            target,
            block.nbytes,
            block.held,
            after,
            node=self._fast if target == FAST else self._here,
            spans=block.ranges(),
            bytes_per_s=self._bytes_per_s,
            first=first,
        )
        return Transfer(self._mover.submit(job))
