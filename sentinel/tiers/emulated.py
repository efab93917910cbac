"""A slower node with real delays: bytes stay in host memory, accounts and time are those of another tier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import transfer_ns
from sentinel.core.machine import Machine, TierSpec
from sentinel.tiers.tier import FAST, HeldBlock, Job, Mover, Transfer


class EmulatedTier:
    """Tier `index` of `machine`. Jobs of one direction queue on a link at full speed; accesses cost the difference
    between this tier and the fast one."""

    def __init__(self, machine: Machine, index: int, mover: Mover) -> None:
        self._machine = machine
        self._index = index
        self._mover = mover

    @property
    def spec(self) -> TierSpec:
        """What it is and what it costs."""
        return self._machine.tiers[self._index]

    @property
    def holds_pages(self) -> bool:
        """Bytes stay in host memory: False."""
        return False

    @property
    def takes_unplanned_births(self) -> bool:
        """Only the accounts say where bytes are: True."""
        return True

    @property
    def used_in_place(self) -> bool:
        """As the machine says."""
        return self.spec.addressable

    def room_bytes(self) -> int:
        """Bytes that it could still take in."""
        return max(self.spec.capacity_bytes - self._mover.bytes_in(self._index), 0)

    def admit(self, block: HeldBlock, after: int = 0, *, source: int = FAST, first: bool = False) -> Transfer:
        """Begin to move `block` to here."""
        return self._submit(source, self._index, block, after, first=first)

    def recall(self, block: HeldBlock, after: int = 0) -> Transfer:
        """Begin to move `block` to fast memory."""
        return self._submit(self._index, FAST, block, after)

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

    def _submit(self, source: int, target: int, block: HeldBlock, after: int, *, first: bool = False) -> Transfer:
        away = [(tier, held) for tier, held in enumerate(block.held) if held and tier != target]
        duration_ns = sum(self._journey_ns(tier, target, held) for tier, held in away or [(source, 0)])
        job = Job(source, target, block.nbytes, block.held, after, duration_ns, first=first)
        return Transfer(self._mover.submit(job))

    def _journey_ns(self, source: int, target: int, nbytes: int) -> int:
        """How long `nbytes` take; between two slower tiers as long as through fast memory."""
        if FAST in (source, target):
            return transfer_ns(self._machine.link(source, target), nbytes)
        return self._journey_ns(source, FAST, nbytes) + self._journey_ns(FAST, target, nbytes)
