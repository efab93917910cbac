"""Staging: what one rank reads, keeps and delivers in an epoch, or in the rest of one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sentinel.samples.room import Room

DIRECT = -1
"""In `stay_at`: the sample is read alone and handed over, without a place in the arena."""
BEFORE = -1
"""In `stay_read`: the sample is in the arena since the epoch before."""


@dataclass(frozen=True)
class Windows:
    """What the next epoch's plan goes on from. `price`: of memory, in reads for a page that is taken while one position
    is delivered.

    `stop`: (n_chunks,) position in the next epoch where the running window of each chunk ends; 0 where none runs.
    """

    price: float
    stop: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Staging:
    """The plan of an epoch for one rank: reads in the order in which they are due, stays of samples in the arena, and
    which stay serves each position. A position is a number of samples delivered by this rank, from 0 at the plan's
    begin.

    Who carries it out: before position p is delivered all reads with `read_due` <= p are done, the samples of each
    written to pages of the arena; read r may begin once read_due[r] - lead samples were delivered, and there is room
    for it then. Stay s gives its pages back as soon as position stay_until[s] was delivered. The pages of `kept` stay:
    the next epoch's staging begins with these stays, in this order.
    """

    room: Room
    order: NDArray[np.int64]
    """(m,) The sample delivered at each position."""
    read_chunk: NDArray[np.int64]
    """(n_reads,) The chunk that each read takes: all of it, or what stays."""
    read_due: NDArray[np.int64]
    """(n_reads,) The first position that needs it, ascending."""
    stay_sample: NDArray[np.int64]
    """(n_stays,) The sample that stays; those of one read stand together, in the order of their first use."""
    stay_read: NDArray[np.int64]
    """(n_stays,) The read that brings it, ascending; BEFORE for those kept from the epoch before, which come first."""
    stay_until: NDArray[np.int64]
    """(n_stays,) The last position that it serves; m if it is kept for the next epoch."""
    stay_at: NDArray[np.int64]
    """(m,) The stay that serves each position, or DIRECT."""
    windows: Windows | None = field(default=None, repr=False)

    @property
    def n_positions(self) -> int:
        """m, the samples that are delivered."""
        return len(self.order)

    def after(self, before: NDArray[np.int64]) -> Staging:
        """The same plan at the end of an epoch that begins with the samples `before` (k,), which are read alone. It has
        nothing from an earlier epoch."""
        k = len(before)
        return replace(
            self,
            order=np.concatenate([before, self.order]),
            read_due=self.read_due + k,
            stay_until=self.stay_until + k,
            stay_at=np.concatenate([np.full(k, DIRECT, np.int64), self.stay_at]),
        )

    @cached_property
    def first_stay(self) -> NDArray[np.int64]:
        """(n_reads + 1,) The stays of read r are those of [first_stay[r], first_stay[r + 1])."""
        return np.searchsorted(self.stay_read, np.arange(len(self.read_chunk) + 1))

    @cached_property
    def kept(self) -> NDArray[np.int64]:
        """The stays that are in the arena as the next epoch begins, ascending."""
        return np.flatnonzero(self.stay_until == self.n_positions)
