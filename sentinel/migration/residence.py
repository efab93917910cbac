"""Where each block really is, and what the slow ones cost each layer; kept up to date move by move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.tiers.tier import Tier


class Residence:
    """Per block: `tier` (where it is), `fast_bytes` and `held` (it counts in the accounts). Per layer: what its
    accesses cost extra and how many bytes the fast tier serves, given where blocks are now.

    A block in flight is served by the slower of its two tiers: `serve` says by which. `tiers[0]` is None.
    """

    def __init__(self, plan: Plan, uses: NDArray[Any], tiers: Sequence[Tier | None]) -> None:
        count = len(plan.blocks)
        self.tier = [block.tier for block in plan.blocks]
        self.fast_bytes = [0] * count
        self.held = [False] * count
        self._served_by = [0] * count
        rows = np.sort(uses, order=["block", "layer"])
        self._bounds = np.searchsorted(rows["block"], np.arange(count + 1)).tolist()
        self._layers = rows["layer"].astype(np.int64)
        self._touched = rows["touched_bytes"].astype(np.int64)
        self._extra = [np.zeros(len(rows), np.int64) if tier is None else tier.delay_ns(rows) for tier in tiers]
        self.slow_ns = np.zeros(plan.n_layers, np.int64)
        self.touched_bytes = np.zeros(plan.n_layers, np.int64)
        np.add.at(self.touched_bytes, self._layers, self._touched)
        self.served_fast_bytes = self.touched_bytes.copy()
        for index, tier_index in enumerate(self.tier):
            self.serve(index, tier_index)

    def serve(self, block: int, tier: int) -> None:
        """From now on accesses to `block` are served by `tier`."""
        before = self._served_by[block]
        if before == tier:
            return
        self._served_by[block] = tier
        low, high = self._bounds[block], self._bounds[block + 1]
        if low == high:
            return
        layers = self._layers[low:high]  # each layer once, so += adds each row
        self.slow_ns[layers] += self._extra[tier][low:high] - self._extra[before][low:high]
        if (before == 0) != (tier == 0):
            sign = 1 if tier == 0 else -1
            self.served_fast_bytes[layers] += sign * self._touched[low:high]

    def settle(self, block: int, tier: int, fast_bytes: int) -> None:
        """`block` is in `tier` now, `fast_bytes` of it in the fast one."""
        self.tier[block] = tier
        self.fast_bytes[block] = fast_bytes
        self.serve(block, tier)
