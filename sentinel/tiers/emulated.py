"""A slower node with real delays: bytes stay in host memory, accounts and time are those of another tier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import transfer_ns
from sentinel.core.machine import Link, Machine, TierSpec
from sentinel.tiers.tier import DEMOTE, PROMOTE, HeldBlock, Job, Mover, Transfer


class EmulatedTier:
    """Tier `index` of `machine`. Jobs of one direction queue on a link at full speed; accesses cost the difference
    between this tier and the fast one."""

    def __init__(self, machine: Machine, index: int, mover: Mover) -> None:
        self._machine = machine
        self._index = index
        self._mover = mover
        self._up = machine.link(index, 0)
        self._down = machine.link(0, index)

    @property
    def spec(self) -> TierSpec:
        """What it is and what it costs."""
        return self._machine.tiers[self._index]

    def room_bytes(self) -> int:
        """Bytes that it could still take in."""
        return max(self.spec.capacity_bytes - self._mover.slow_bytes(), 0)

    def admit(self, block: HeldBlock, after: int = 0, *, first: bool = False) -> Transfer:
        """Begin to move `block` from fast memory to here."""
        return self._submit(DEMOTE, block, block.fast_bytes, self._down, after, first=first)

    def recall(self, block: HeldBlock, after: int = 0) -> Transfer:
        """Begin to move `block` from here to fast memory."""
        return self._submit(PROMOTE, block, block.nbytes - block.fast_bytes, self._up, after)

    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """(m,) what each use costs here beyond the fast tier, at least 0."""
        slow, fast = self.spec, self._machine.fast
        operands = uses["reads"].astype(np.float64) + uses["writes"]
        extra: NDArray[np.float64] = (
            operands * (slow.latency_ns - fast.latency_ns)
            + uses["read_bytes"] * (1e9 / slow.read_bytes_per_s - 1e9 / fast.read_bytes_per_s)
            + uses["written_bytes"] * (1e9 / slow.write_bytes_per_s - 1e9 / fast.write_bytes_per_s)
        )
        whole: NDArray[np.int64] = np.rint(np.maximum(extra, 0.0)).astype(np.int64)
        return whole

    def close(self) -> None:
        """Nothing to let go of."""

    def _submit(
        self, direction: int, block: HeldBlock, nbytes: int, link: Link, after: int, *, first: bool = False
    ) -> Transfer:
        duration_ns = transfer_ns(link, nbytes)
        job = Job(direction, block.nbytes, block.fast_bytes, after, duration_ns, first=first)
        return Transfer(self._mover.submit(job))
