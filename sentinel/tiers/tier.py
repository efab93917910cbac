"""What a tier is to the engine: a place that takes blocks in and gives them back, through one mover."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine, TierSpec

FAST = 0
"""The number of the fast tier, `Machine.hub`."""
MOST_TIERS = 8
"""Tiers that a mover keeps apart."""

EMULATED, NODE, BACKEND = 0, 1, 2
"""Kinds of jobs, as the native mover numbers them."""


class HeldBlock(NamedTuple):
    """A block as the engine holds it. `held`: its bytes in each tier (as the transfer before leaves them, if there is
    one). `ranges()`: (address, nbytes) of its pieces in this process, whole pages; asked for only as bytes move."""

    nbytes: int
    held: Sequence[int]
    ranges: Callable[[], Sequence[tuple[int, int]]]


class Job(NamedTuple):
    """What a mover does: a block of `nbytes`, of which each tier has what `held` says, goes to tier `target`. What
    stays is counted in tier `source`. `kind` NODE: `spans` go to NUMA node `node`; EMULATED: it takes `duration_ns` on
    an idle link, or as long as it takes to copy `spans` out of memory. BACKEND: what is at address `backend`, a struct
    sn_backend, moves `spans`; it has no `spare` tier.

    `after`: a started job that must have ended first, 0 for none. `bytes_per_s`: no faster than this; 0 for no limit.
    `first`: promotions that have not started wait for its end. `spare`: the tier to which it goes where `target` has no
    room, on node `spare_node` or within `spare_duration_ns`; `source`: it stays then, cancelled; 0 for none. A
    promotion has no spare tier; it takes `spare_duration_ns` where the job before it went to its own.
    """

    source: int
    target: int
    nbytes: int
    held: Sequence[int]
    after: int = 0
    kind: int = EMULATED
    duration_ns: int = 0
    node: int = -1
    spans: Sequence[tuple[int, int]] = ()
    bytes_per_s: int = 0
    first: bool = False
    spare: int = FAST
    spare_node: int = -1
    spare_duration_ns: int = 0
    backend: int = 0

    def else_to(self, other: Job) -> Job:
        """This job, or `other` of the same bytes where its target has no room."""
        if other.kind != self.kind or self.kind == BACKEND or other.target in (self.source, self.target):
            return self
        return self._replace(spare=other.target, spare_node=other.node, spare_duration_ns=other.duration_ns)

    def else_from(self, other: Job) -> Job:
        """This promotion, which takes as long as `other` where the job before it went to its spare tier."""
        return self._replace(spare_duration_ns=other.duration_ns)

    def else_stays(self) -> Job:
        """This job between slower tiers, which does not begin where its target has no room."""
        return self if self.kind == BACKEND else self._replace(spare=self.source)


class Tier(ABC):
    """Where bytes can live beside the fast tier: tier `index` of `machine`. Plans move them between fast memory and
    here; only where one plan gives way to another a block may come from another slower tier.

    `bytes_per_s`: pages move no faster than this, 0 for no limit.
    """

    holds_pages = False
    """Whether pages lie here: then the kernel may move them too, and they are dropped as their block dies."""

    takes_unplanned_births = False
    """Whether a block may be born here, such as one for which fast memory has no room. Else bytes get here by moves
    only, and are brought back to fast memory in the end."""

    def __init__(self, machine: Machine, index: int, bytes_per_s: int = 0) -> None:
        self._machine, self._index, self._bytes_per_s = machine, index, bytes_per_s

    @property
    def spec(self) -> TierSpec:
        """What it is and what it costs."""
        return self._machine.tiers[self._index]

    @property
    def used_in_place(self) -> bool:
        """Whether what is here can be read and written where it is; else it must be in fast memory before."""
        return self.spec.addressable

    @abstractmethod
    def job(self, block: HeldBlock, source: int, target: int) -> Job:
        """What moves `block` to here, or from here to fast memory, wherever its bytes are. What stays is counted in
        tier `source`. The same for the same `block.held`."""

    @abstractmethod
    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """(m,) per row of `uses` (USE_DTYPE): what must be injected if it is served from here. 0 where memory
        is really slower."""


def holds_pages(tiers: Sequence[Tier | None]) -> bool:
    """Whether all tiers beside the fast one hold pages: only then it matters where pages are."""
    return all(tier.holds_pages for tier in tiers if tier is not None)
