"""A dive: what stays in fast memory is made whole, a few families at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.master import Master, Mix

_UP, _DOWN = 0.75, 0.15
"""Parts of a unit from which on a dive rounds up, and up to which it rounds down, at once."""


class Dive:
    """Draws the master's bounds closer in turn, until of each family a whole number of units stays, or nearly.

    A unit in the pool is there whole, since its addresses are shared. Near wholes are fixed, the nearest of the others
    is rounded up, and the rest finds its place around it. `mix`: the best one so far. `members`: units of each family.
    """

    def __init__(self, master: Master, mix: Mix, members: NDArray[np.int64]) -> None:
        self.master, self.mix = master, mix
        self._long = np.flatnonzero(master.stays.family >= 0)
        self._members = members[master.stays.family[self._long]].astype(np.float64)
        self._low, self._high = np.zeros(len(self._long)), np.ones(len(self._long))

    def go(self, rounds: int) -> int:
        """Dive for so many rounds; returns how many there were."""
        for number in range(rounds):
            if not self._deeper():
                return number
        return rounds

    def _deeper(self) -> bool:
        low, high, m = self._low, self._high, self._members
        count = self.mix.stay[self._long] * m
        part = count - np.floor(count + 1e-6)
        open_ = np.flatnonzero((part > 1e-3) & (high > low))
        if not len(open_):
            return False
        up = open_[(part[open_] >= _UP) | (part[open_] == part[open_].max())]
        down = np.setdiff1d(open_[part[open_] <= _DOWN], up)
        low[up] = np.minimum(np.ceil(count[up]) / m[up], 1.0)
        high[down] = np.floor(count[down]) / m[down]
        self.master.limit_stays(self._long, low, high)
        found = self.master.solve()
        if found is None:  # no room for what was rounded up
            low[up], high[up] = 0.0, np.floor(count[up]) / m[up]
            self.master.limit_stays(self._long, low, high)
            found = self.master.solve()
        if found is None:
            return False
        self.mix = found
        return True
