"""GranuleUses: which granules of 2 MiB each operator of one training step uses, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

READS = 1
"""Bytes that the granule had before are needed: they are read, or some of them outlive a write beside them."""
WRITES = 2
"""The bytes change. Without READS all of them do, so that none of before is needed."""
BORN = 4
"""The bytes that the granule had before this operator are of no use to anybody."""
DIED = 8
"""The bytes that the granule has after this operator are of no use to anybody."""


@dataclass(frozen=True)
class GranuleUses:
    """The uses of a step that repeats: after the last operator comes the first one again.

    `compute_ns`: (operators,) int64, the time of each operator without waits for granules.
    `first_use`: (operators + 1,) int64, operator k has the uses `first_use[k]` to `first_use[k + 1]`, half-open.
    `granule`: (uses,) int32, from 0 on, each once an operator at most. `kind`: (uses,) uint8, READS, WRITES, BORN and
    DIED added up. A use without READS and WRITES says only that bytes begin or end there: nothing has to be in memory.

    Raises ValueError for arrays that do not fit one another.
    """

    compute_ns: NDArray[np.int64]
    first_use: NDArray[np.int64]
    granule: NDArray[np.int32]
    kind: NDArray[np.uint8]

    def __post_init__(self) -> None:
        kinds = {"compute_ns": np.int64, "first_use": np.int64, "granule": np.int32, "kind": np.uint8}
        for name, kind in kinds.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != kind:
                raise ValueError(f"{name}: expected a row of {np.dtype(kind)}, got {array.dtype}{array.shape}")
        first = self.first_use
        broken = (
            (len(self.granule) != len(self.kind), f"granule: {len(self.granule)} of them, {len(self.kind)} kinds"),
            (len(first) != self.operators + 1, f"first_use: {len(first)} for {self.operators} operators, not one more"),
            (len(first) and first[0] != 0, "first_use: the first is not 0"),
            ((np.diff(first) < 0).any(), "first_use: an operator ends before it begins"),
            (len(first) and first[-1] != self.uses, f"first_use: ends at another number than the {self.uses} uses"),
            ((self.compute_ns < 0).any(), "compute_ns: a time below 0"),
            ((self.granule < 0).any(), "granule: a number below 0"),
            ((self.kind > READS + WRITES + BORN + DIED).any() or not self.kind.all(), "kind: one that is unknown"),
        )
        for is_broken, what in broken:
            if is_broken:
                raise ValueError(what)
        named = self.operator * (int(self.granule.max(initial=0)) + 1) + self.granule
        if len(np.unique(named)) != len(named):
            raise ValueError("granule: one stands twice in one operator")

    @property
    def operators(self) -> int:
        """How many operators the step has."""
        return len(self.compute_ns)

    @property
    def uses(self) -> int:
        """How many uses there are, of all operators."""
        return len(self.kind)

    @property
    def operator(self) -> NDArray[np.int64]:
        """(uses,) the operator of each use."""
        return np.repeat(np.arange(self.operators), np.diff(self.first_use))
