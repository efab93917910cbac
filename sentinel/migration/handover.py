"""Handover: where persistent bytes are, by address, as the engine of one plan gives way to that of another.

Steps of several shapes have a plan each, and each plan cuts the same parameters into other blocks. So one engine
tells the next how many bytes of which address ranges are in fast memory, and the next reads off its own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES

SPAN_DTYPE = np.dtype([("address", "<i8"), ("nbytes", "<i8"), ("fast_bytes", "<i8"), ("tier", "<i4")])
"""Address ranges that do not overlap, sorted: how much of each is in fast memory, and where the rest is."""


@dataclass(frozen=True, eq=False)
class Handover:
    """`began_ns`: when the layer under way began. `spans`: of dtype SPAN_DTYPE."""

    began_ns: int
    spans: NDArray[Any]


class Pieces:
    """The address ranges of some blocks of a plan, found once."""

    def __init__(self, blocks: Sequence[int], ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        found = sorted((address, nbytes, index) for index in blocks for address, nbytes in ranges(index))
        rows = np.array(found, np.int64).reshape(len(found), 3)
        self.address, self.nbytes, self.block = rows[:, 0], rows[:, 1], rows[:, 2]

    def tell(self, tier: Sequence[int], fast_bytes: Sequence[int], block_nbytes: Sequence[int]) -> NDArray[Any]:
        """Spans of what is where, given `tier` and `fast_bytes` of each block; a block in parts is so evenly."""
        spans = np.zeros(len(self.address), SPAN_DTYPE)
        spans["address"], spans["nbytes"] = self.address, self.nbytes
        spans["tier"] = np.asarray(tier, np.int64)[self.block]
        share = np.asarray(fast_bytes, np.float64) / np.maximum(np.asarray(block_nbytes, np.float64), 1)
        spans["fast_bytes"] = np.rint(self.nbytes * share[self.block])
        return spans

    def read(self, spans: NDArray[Any]) -> dict[int, tuple[int, int]]:
        """Block -> (tier of what is not in fast memory, its bytes that are), whole pages. What no span covers is in
        fast memory, where bytes are born that no plan knows."""
        starts, stops = self.address, self.address + self.nbytes
        fast = _within(spans, spans["fast_bytes"], starts, stops)
        fast += self.nbytes - _within(spans, spans["nbytes"], starts, stops)
        at = np.clip(np.searchsorted(spans["address"], starts, "right") - 1, 0, None)
        tier = spans["tier"][at] if len(spans) else np.zeros(len(starts), np.int64)
        sums: dict[int, tuple[int, int]] = {}
        for block, slow, nbytes in zip(self.block.tolist(), tier.tolist(), fast.tolist(), strict=True):
            before, total = sums.get(block, (0, 0))
            sums[block] = max(before, slow), total + round(nbytes / PAGE_BYTES) * PAGE_BYTES
        return sums


def _within(
    spans: NDArray[Any], amount: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How much of `amount`, spread evenly over each span, lies in [starts, stops)."""
    if not len(spans):
        return np.zeros(len(starts))
    edges = np.stack([spans["address"], spans["address"] + spans["nbytes"]], axis=1).ravel()
    sums = np.stack([amount.cumsum() - amount, amount.cumsum()], axis=1).ravel()
    within: NDArray[np.float64] = np.interp(stops, edges, sums) - np.interp(starts, edges, sums)
    return within
