"""A slower node with real delays: bytes stay in host memory, accounts and time are those of another tier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import transfer_ns
from sentinel.tiers.tier import EMULATED, HeldBlock, Job, SlowTier


class EmulatedTier(SlowTier):
    """Jobs of one direction queue on a link at full speed; accesses cost the difference between this tier and the fast
    one. Only the accounts say where bytes are, so a block may be born here."""

    takes_unplanned_births = True

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

    def _job(self, block: HeldBlock, source: int, target: int, after: int) -> Job:
        away = [(tier, held) for tier, held in enumerate(block.held) if held and tier != target]
        duration_ns = sum(self._journey_ns(tier, target, held) for tier, held in away or [(source, 0)])
        return Job(source, target, block.nbytes, block.held, after, EMULATED, duration_ns)

    def _journey_ns(self, source: int, target: int, nbytes: int) -> int:
        """How long `nbytes` take; between two slower tiers as long as through fast memory."""
        hub = self._machine.hub
        if hub in (source, target):
            return transfer_ns(self._machine.link(source, target), nbytes)
        return self._journey_ns(source, hub, nbytes) + self._journey_ns(hub, target, nbytes)
