"""The reserved pool of short-lived tensors: which of them are in fast memory, and the room that leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.pool import Pool, held_bytes, make_pool
from sentinel.planner.workload import Workload, short_peaks

_ROUNDS = 6
_MOSTLY = 0.5


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
    """The reserve within `budget` bytes of fast memory; what packing puts above that is in slow memory.

    `slow`: (short,) tensors that are not to be in it whatever the room. `others`: units that are to be in it too,
    but for those of which most would lie above the budget.
    """
    units, tier = work.units, _chosen(work, budget, slow)
    pooled = np.zeros(len(units), bool)
    pooled[others if others is not None else []] = True
    for _ in range(_ROUNDS):
        inside = units.tensors[pooled[units.unit_of[units.tensors]]]
        pool = make_pool(work.profile, np.append(units.short[tier == 0], inside), budget)
        cut = _slow_units(work, pool)
        lost = pooled & (cut > _MOSTLY)
        if not lost.any():
            break
        pooled &= ~lost
    return Reserve(tier, pool, held_bytes(pool, work.profile), np.flatnonzero(pooled))


def _slow_units(work: Workload, pool: Pool) -> NDArray[np.float64]:
    """(units,) share of each unit's bytes that lies above the pool's cap."""
    units, nbytes = work.units, work.profile.tensors["nbytes"]
    mine = units.unit_of[pool.tensors] >= 0
    of, size = units.unit_of[pool.tensors[mine]], nbytes[pool.tensors[mine]]
    over = np.bincount(of, size * pool.slow_share(work.profile)[mine], len(units))
    return np.asarray(over / np.maximum(np.bincount(of, size, len(units)), 1))


def pool_ns(work: Workload, short: Reserve) -> NDArray[np.float64]:
    """(L,) extra time of short-lived tensors in slow memory, less what the units that stay in fast memory save."""
    slow = (short.tier > 0).astype(np.float64)
    place = np.full(len(work.profile.names), -1)
    place[work.units.short] = np.arange(len(slow))
    mine = place[short.pool.tensors] >= 0
    slow[place[short.pool.tensors[mine]]] = short.pool.slow_share(work.profile)[mine]
    layer = work.profile.tensors["start"][work.units.short]
    out = np.bincount(layer, work.short_ns * slow, work.n_layers)
    kept = np.zeros(len(work.units))
    kept[short.pooled] = 1.0 - _slow_units(work, short.pool)[short.pooled]
    saved = np.bincount(work.use_layer % work.n_layers, work.use_ns * kept[work.use_unit], work.n_layers)
    return np.asarray(out - saved, np.float64)


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
