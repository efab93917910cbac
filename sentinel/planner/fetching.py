"""Timelines for slow memory that cannot be used in place, such as a file: fast memory serves every use.

What is left to choose is which gaps between two uses a unit spends away, and when it leaves and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import Infeasible
from sentinel.planner.decision import (
    Choice,
    Decision,
    bridge_shortest_gaps,
    choose,
    decide,
    episodes_of,
    room_bytes,
)
from sentinel.planner.paper import lengths_to_try
from sentinel.planner.pool import reserve
from sentinel.planner.workload import Workload

_UNLIMITED = 1 << 62  # bytes

_MOST_WINDOWS = 12
"""Columns of more of them are hardly ever in a mix, and a program takes three times as long with 40."""


def fetches(work: Workload) -> Iterator[Choice]:
    """Choices that a program for a Workload begins with: all stays, all leaves at once and comes back just in time, or
    so many layers ahead. Of these the second needs the least room: where it does not fit, the program has no plan
    (tensors that share room by events might)."""
    everywhere = np.ones(len(work.use_unit), bool)
    yield ahead(work, ~everywhere, 1)
    for layers in lengths_to_try(work.n_layers - 1, _MOST_WINDOWS):
        yield ahead(work, everywhere, layers)


def ahead(work: Workload, parted: NDArray[np.bool_], layers: int) -> Choice:
    """What has to be fetched is out in the layer behind a use, and back so many `layers` before the next, in the gaps
    that are parted and wide enough; all else is in slow memory."""
    _, by, has_gap = work.gaps
    after, fetched = work.use_layer + 1, work.fetched[work.use_unit]
    wide = has_gap & (by - after >= layers + 1)
    return Choice(fetched, parted & wide & fetched, after, after + 1, by - layers, by)


def just_in_time(work: Workload) -> Decision:
    """The decision that needs the least room, but for the shortest gaps as far as there is more. Raises Infeasible
    where it does not fit."""
    layers = work.profile.tensors["start"][work.units.short]
    short = reserve(work, work.budget_bytes, ~work.keeps_shorts[layers])
    packed = short.pool.extent <= short.pool.cap  # it may be larger than its fullest layer
    if work.keeps_shorts.all() and (short.tier.any() or not packed):
        raise _infeasible(work)
    free = work.budget_bytes - short.held_bytes
    episodes = episodes_of(work, ahead(work, _parted(work, free), 1))
    if not choose(work, episodes, free, np.arange(len(episodes))).all():
        raise _infeasible(work)
    return decide(work, episodes, np.ones(len(episodes), bool), short)


def _infeasible(work: Workload) -> Infeasible:
    """With what suffices: for the whole pool of short-lived tensors, and for all else just in time beside it."""
    whole = reserve(work, _UNLIMITED)
    everywhere = np.ones(len(work.use_unit), bool)
    held = room_bytes(work, episodes_of(work, ahead(work, everywhere, 1))) + whole.held_bytes
    full = int(held.argmax())
    return Infeasible(max(int(held[full]), whole.pool.extent), work.machine.fast.capacity_bytes, full)


def _parted(work: Workload, free: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Gaps left after bridging them from the shortest on while there is room beside all moves."""
    _, by, has_gap = work.gaps
    after = work.use_layer + 1
    parted = has_gap & (by - after >= 2)
    left = free - room_bytes(work, episodes_of(work, ahead(work, parted, 1)))
    return bridge_shortest_gaps(work, parted, left, after + 1, by - 1)
