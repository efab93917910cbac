"""Handover: where persistent bytes are, by address, as the engine of one plan gives way to that of another.

Steps of several shapes have a plan each, and each plan cuts the same parameters into other blocks. So one engine
tells the next how many bytes of which address ranges are in which tier, and the next reads off its own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES
from sentinel.tiers.tier import FAST, MOST_TIERS

SPAN_DTYPE = np.dtype([("address", "<i8"), ("nbytes", "<i8"), ("bytes_in", "<i8", (MOST_TIERS,))])
"""Address ranges that do not overlap, sorted: how many bytes of each are in which tier."""


@dataclass(frozen=True, eq=False)
class Handover:
    """`began_ns`: when the layer under way began. `spans`: of dtype SPAN_DTYPE. `births_away`: untouched pages of some
    blocks are born outside fast memory; see BirthNodes. `look_soon`: pages may be elsewhere; see PageAudit.hurry."""

    began_ns: int
    spans: NDArray[Any]
    births_away: bool = False
    look_soon: bool = False

    def born_again(self, nodes: Collection[int]) -> Handover:
        """All pages were replaced by others, born in fast memory where it has room: none is in tiers `nodes`."""
        spans = self.spans.copy()
        spans["bytes_in"][:, list(nodes)] = 0
        return replace(self, spans=spans, births_away=False, look_soon=True)


class Pieces:
    """The address ranges of some blocks of a plan, found once."""

    def __init__(self, blocks: Sequence[int], ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        found = sorted((address, nbytes, index) for index in blocks for address, nbytes in ranges(index))
        rows = np.array(found, np.int64).reshape(len(found), 3)
        self.address, self.nbytes, self.block = rows[:, 0], rows[:, 1], rows[:, 2]

    def tell(self, bytes_in: Sequence[Sequence[int]], block_nbytes: Sequence[int]) -> NDArray[Any]:
        """Spans of what is where, given the bytes of each block in each tier; a block in parts is so evenly."""
        spans = np.zeros(len(self.address), SPAN_DTYPE)
        spans["address"], spans["nbytes"] = self.address, self.nbytes
        for tier, held in enumerate(bytes_in):
            share = np.asarray(held, np.float64) / np.maximum(np.asarray(block_nbytes, np.float64), 1)
            spans["bytes_in"][:, tier] = np.rint(self.nbytes * share[self.block])
        return spans

    def read(self, spans: NDArray[Any], tiers: int) -> dict[int, list[int]]:
        """Block -> its bytes in each of so many tiers, whole pages. What no span covers is in fast memory, where bytes
        are born that no plan knows."""
        starts, stops = self.address, self.address + self.nbytes
        found: dict[int, list[int]] = {block: [0] * tiers for block in self.block.tolist()}
        left = self.nbytes.copy()
        for tier in range(FAST + 1, tiers):
            within = _within(spans, spans["bytes_in"][:, tier], starts, stops)
            pages = np.minimum(np.rint(within / PAGE_BYTES).astype(np.int64) * PAGE_BYTES, left)
            left -= pages
            for block, nbytes in zip(self.block.tolist(), pages.tolist(), strict=True):
                found[block][tier] += nbytes
        for block, nbytes in zip(self.block.tolist(), left.tolist(), strict=True):
            found[block][FAST] += nbytes
        return found


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
