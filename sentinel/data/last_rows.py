"""LastRows: the last rows of a log, at most so many, so that it does not grow with an epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 1 << 14
"""Chunks of 64 of an epoch of half a million samples; at most 4 MB of a log of batches."""


class LastRows:
    """For one thread, or with a lock of the caller's."""

    def __init__(self, names: Sequence[str], most: int = MOST_ROWS) -> None:
        """`names`: of the columns, each of whole numbers."""
        self._rows = np.zeros(most, [(name, np.int64) for name in names])
        self._count = 0

    def add(self, *values: int) -> None:
        """A row, in place of the first one where there are as many as may be."""
        self._rows[self._count % len(self._rows)] = values
        self._count += 1

    @property
    def are_all(self) -> bool:
        """Whether none is left out."""
        return self._count <= len(self._rows)

    @property
    def kept(self) -> NDArray[np.void]:
        """(rows,) in the order in which they were added."""
        if self.are_all:
            return self._rows[: self._count].copy()
        return np.roll(self._rows, -(self._count % len(self._rows)))
