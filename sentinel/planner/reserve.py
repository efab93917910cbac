"""The reserved pool of short-lived tensors: which of them are in fast memory, and the room that leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.pool import Pool, held_bytes, make_pool
from sentinel.planner.workload import Workload, short_peaks


@dataclass(frozen=True, eq=False)
class Reserve:
    """`tier` of each short-lived tensor, the packed `pool` of what is in fast memory, the (L,) bytes it holds, and the
    units that are in it as well."""

    tier: NDArray[np.int64]
    pool: Pool
    held_bytes: NDArray[np.int64]
    pooled: NDArray[np.int64]


def reserve(
    work: Workload,
    budget: int,
    slow: NDArray[np.bool_] | None = None,
    others: NDArray[np.int64] | None = None,
) -> Reserve:
    """The reserve within `budget` bytes of fast memory; what packing wastes is made room for.

    `slow`: (short,) tensors that are not to be in it whatever the room. `others`: units that are to be in it too.
    Units that do not fit are left out, the largest first; then short-lived tensors go to slow memory.
    """
    limit, units = budget, work.units
    pooled = np.zeros(len(units), bool)
    pooled[others if others is not None else []] = True
    while True:
        tier = _chosen(work, limit, slow)
        inside = units.tensors[pooled[units.unit_of[units.tensors]]]
        pool = make_pool(work.profile, np.append(units.short[tier == 0], inside))
        held = held_bytes(pool, work.profile)
        over = int(held.max(initial=0)) - budget
        if over <= 0:
            return Reserve(tier, pool, held, np.flatnonzero(pooled))
        if pooled.any():
            full = int(held.argmax())
            there = pooled & ((full - units.start) % work.n_layers < units.stop - units.start)
            suspects = np.flatnonzero(there if there.any() else pooled)
            order = suspects[np.argsort(-units.nbytes[suspects], kind="stable")]
            gone = np.searchsorted(np.cumsum(units.nbytes[order]), over) + 1
            pooled[order[:gone]] = False
            continue
        limit = max(min(limit - over, limit * 15 // 16), 0)


def _chosen(work: Workload, budget: int, slow: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """(short,) tier of each short-lived tensor, by live bytes.

    All in fast if the fullest layer fits. Else, in each layer that does not fit, the tensors with the least
    to gain a byte go to slow memory until it does.
    """
    units, t = work.units, work.profile.tensors
    tier = np.zeros(len(units.short), np.int64)
    peaks = work.short_bytes
    if slow is not None:
        tier[slow] = 1
        peaks = short_peaks(work.profile, units.short[~slow])
    if peaks.max(initial=0) <= budget:
        return tier
    nbytes = t["nbytes"][units.short].astype(np.int64)
    layer = t["start"][units.short]
    density = work.short_ns / nbytes
    for full in np.flatnonzero(peaks > budget).tolist():
        rows = np.flatnonzero((layer == full) & (tier == 0))
        rows = rows[np.argsort(density[rows], kind="stable")]
        low, high = 0, len(rows)  # the least number that must go, by bisection: the peak falls with each
        while low < high:
            middle = (low + high) // 2
            if short_peaks(work.profile, units.short[rows[middle:]])[full] <= budget:
                high = middle
            else:
                low = middle + 1
        tier[rows[:low]] = 1
    return tier
