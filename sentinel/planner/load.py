"""What timelines load: room and links by layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spread(
    start: NDArray[np.int64], stop: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unrolled ranges [start, stop) as flat (layer of the ring, which range), every layer of each."""
    width = np.maximum(stop - start, 0)
    which = np.repeat(np.arange(len(width)), width)
    step = np.arange(len(which)) - np.repeat(np.cumsum(width) - width, width)
    return (start[which] + step) % length, which
