"""Where each block really is, in any number of tiers, and what its accesses cost each layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sentinel.core.plan import Plan
from sentinel.tiers.tier import FAST, Tier


class BlockTable:
    """Per block: `bytes_in[tier][block]`, `tier` (the one in which it counts as being: all of it, or, of a block in
    parts, the one that it is to leave) and `held` (it counts in the accounts). Per layer: what its accesses cost extra
    and how many bytes the fast tier serves, given where blocks are now.

    `plan` carries its uses. A block in flight is served by the slower of its two tiers: `serve` says by which.
    `tiers[FAST]` is None.
    """

    def __init__(self, plan: Plan, tiers: Sequence[Tier | None]) -> None:
        count = len(plan.blocks)
        self.nbytes = [block.nbytes for block in plan.blocks]
        self.tier = [block.tier for block in plan.blocks]
        self.bytes_in = [[0] * count for _ in tiers]
        self.held = [False] * count
        self._served_by = [FAST] * count
        rows = np.sort(plan.uses, order=["block", "layer"])
        self._bounds = np.searchsorted(rows["block"], np.arange(count + 1)).tolist()
        self._layers: list[int] = rows["layer"].tolist()
        touched = rows["touched_bytes"].astype(np.int64)
        sums = np.zeros(plan.n_layers, np.int64)
        np.add.at(sums, rows["layer"].astype(np.int64), touched)
        self.touched_bytes: list[int] = sums.tolist()
        self._use_bytes: list[int] = touched.tolist()
        self._delays = [[] if tier is None else tier.delay_ns(rows).tolist() for tier in tiers]  # ns, of each use
        self.slow_ns, self.served_fast_bytes = [0] * plan.n_layers, list(self.touched_bytes)
        for index, tier_index in enumerate(self.tier):
            self.serve(index, tier_index)

    @property
    def fast_bytes(self) -> list[int]:
        """Of each block, in the fast tier."""
        return self.bytes_in[FAST]

    def costs(self, layer: int) -> tuple[int, int, int]:
        """Of the accesses of `layer`: ns that they take longer than in the fast tier, bytes that the fast tier serves,
        bytes touched."""
        return self.slow_ns[layer], self.served_fast_bytes[layer], self.touched_bytes[layer]

    def spread(self, block: int) -> tuple[int, ...]:
        """The bytes of `block` in each tier."""
        return tuple([held[block] for held in self.bytes_in])

    def slower_tier(self, block: int) -> int:
        """The tier beside the fast one that holds most of `block`."""
        return max(range(FAST + 1, len(self.bytes_in)), key=lambda tier: self.bytes_in[tier][block])

    def place(self, block: int, tier: int) -> None:
        """All of `block` is in `tier` now."""
        for index, held in enumerate(self.bytes_in):
            held[block] = self.nbytes[block] if index == tier else 0
        self.tier[block] = tier
        self.serve(block, tier)

    def put(self, block: int, tier: int, spread: Iterable[int]) -> None:
        """`block` counts as being in `tier` now, and of its bytes these are in each tier."""
        for held, nbytes in zip(self.bytes_in, spread, strict=True):
            held[block] = nbytes
        self.tier[block] = tier
        self.serve(block, tier)

    def put_parts(self, block: int, spread: Sequence[int], wanted: int) -> None:
        """As `put`, for a block that is wanted in tier `wanted`. Of one in parts, those that are not there follow the
        others: it counts as being in fast memory if some of it is, else where most of it is."""
        elsewhere = [tier for tier, nbytes in enumerate(spread) if nbytes and tier != wanted]
        if not elsewhere:
            self.put(block, wanted, spread)
        else:
            self.put(block, FAST if FAST in elsewhere else max(elsewhere, key=lambda tier: spread[tier]), spread)

    def serve(self, block: int, tier: int) -> None:
        """From now on accesses to `block` are served by `tier`."""
        before = self._served_by[block]
        if before == tier:
            return
        self._served_by[block] = tier
        for use in range(self._bounds[block], self._bounds[block + 1]):
            layer = self._layers[use]
            if before != FAST:
                self.slow_ns[layer] -= self._delays[before][use]
            if tier != FAST:
                self.slow_ns[layer] += self._delays[tier][use]
            if before == FAST:
                self.served_fast_bytes[layer] -= self._use_bytes[use]
            elif tier == FAST:
                self.served_fast_bytes[layer] += self._use_bytes[use]
