"""Range minimum over a fixed array, for many ranges at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RangeMinimum:
    """Sparse table: n log n to build, constant time a query."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        best = np.arange(len(values))
        self._levels = [best]
        width = 1
        while 2 * width <= len(values):
            left, right = best[:-width], best[width:]
            best = np.where(values[left] <= values[right], left, right)
            self._levels.append(best)
            width *= 2
        rows = np.full((len(self._levels), len(values)), 0)
        for level, row in enumerate(self._levels):
            rows[level, : len(row)] = row
        self._table = rows

    def argmin(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per range [low, high) the first index of the least value; -1 for an empty range."""
        width = high - low
        some = width > 0
        safe = np.where(some, width, 1)
        level = np.frexp(safe.astype(np.float64))[1] - 1
        start = np.where(some, low, 0)
        left = self._table[level, start]
        right = self._table[level, start + safe - (1 << level)]
        return np.where(some, np.where(self.values[left] <= self.values[right], left, right), -1)
