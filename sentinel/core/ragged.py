"""Rows of different lengths laid one after the other, without a loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def positions(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... within each row: `[0, 1, 2, 0, 1]` for counts of 3, 0 and 2."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def ranges(begin: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of [begin, begin + count), of one range after the other."""
    return np.asarray(np.repeat(begin, count) + positions(count))


def ring_layers(
    start: NDArray[np.int64], stop: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every layer of unrolled ranges [start, stop): (its layer on a ring of `length`, index of its range)."""
    width = np.maximum(stop - start, 0)
    which = np.repeat(np.arange(len(width)), width)
    return (start[which] + positions(width)) % length, which
