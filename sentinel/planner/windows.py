"""When a unit could move in a gap between two uses, and at which prices.

A move takes one layer here. What is too large for that moves in several layers, a part in each: the master mixes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.ranges import RangeMinimum


@dataclass(frozen=True, eq=False)
class Prices:
    """(L,) each. `room`: ns a byte held in the layer. `promote`, `demote`: ns a byte moved in it.

    `slow`: what one ns of slow accesses in the layer lengthens the step by, in [0, 1]. `instants`: (L, k) ns a
    byte alive at each instant at which the room of a layer is counted; their sum is `room`.
    """

    room: NDArray[np.float64]
    promote: NDArray[np.float64]
    demote: NDArray[np.float64]
    slow: NDArray[np.float64]
    instants: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Window:
    """Per gap: the unrolled layer of the move and the price of a byte, room held meanwhile included; inf if none."""

    layer: NDArray[np.int64]
    price: NDArray[np.float64]


class Priced:
    """Cheapest moves at given prices. Two turns of the ring are unrolled."""

    def __init__(self, prices: Prices) -> None:
        self.room = np.append(0.0, np.cumsum(np.tile(prices.room, 2)))
        self._arrive = RangeMinimum(np.tile(prices.promote, 2) - self.room[:-1])
        self._leave = RangeMinimum(np.tile(prices.demote, 2) + self.room[1:])

    def arrive(self, after: NDArray[np.int64], by: NDArray[np.int64]) -> Window:
        """Cheapest promotion in a layer of [after, by), the room held from then until layer `by` included."""
        best = self._arrive.argmin(after, by)
        return Window(best, np.where(best >= 0, self._arrive.values[best] + self.room[by], np.inf))

    def leave(self, after: NDArray[np.int64], by: NDArray[np.int64]) -> Window:
        """Cheapest demotion in a layer of [after, by), the room held from `after` until its end included."""
        best = self._leave.argmin(after, by)
        start = np.minimum(after, len(self.room) - 1)
        return Window(best, np.where(best >= 0, self._leave.values[best] - self.room[start], np.inf))
