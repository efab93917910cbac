"""Short-lived tensors in the master: which of them are alive at the instants at which a layer's room is counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.relaxed import instants
from sentinel.planner.workload import Workload

_NEGLIGIBLE = 1e-4


@dataclass(frozen=True, eq=False)
class Shorts:
    """Columns by group: short-lived tensors of one layer that are alive at the same instants and gain alike.

    `mask`: (groups, k) alive at instant k of `layer`. `of`: group of each of `units.short`, -1: too small to
    count, always fast. `exists`: (L, k) instants that there are.
    """

    layer: NDArray[np.int64]
    mask: NDArray[np.bool_]
    nbytes: NDArray[np.float64]
    gain_ns: NDArray[np.float64]
    of: NDArray[np.int64]
    exists: NDArray[np.bool_]


def make_shorts(work: Workload) -> Shorts:
    """The groups of a workload's short-lived tensors."""
    t = work.profile.tensors[work.units.short]
    moments = instants(work.profile)
    event = moments[t["start"]]
    alive = (event >= t["born_event"][:, None]) & (event < t["died_event"][:, None])
    alive |= (event >= 0) & (event + work.profile.n_events < t["died_event"][:, None])
    density = work.short_ns / t["nbytes"]
    grade = np.rint(np.log(np.maximum(density, 1e-30)) * 20).astype(np.int64)
    counted = np.flatnonzero((t["nbytes"] >= work.budget_bytes * _NEGLIGIBLE) & alive.any(axis=1))
    bits = (alive[counted] << np.arange(alive.shape[1])).sum(axis=1)
    keys = np.stack([t["start"][counted].astype(np.int64), bits.astype(np.int64), grade[counted]])
    of = np.full(len(t), -1, np.int64)
    if not len(counted):
        none = np.zeros(0)
        return Shorts(none.astype(np.int64), np.zeros((0, moments.shape[1]), bool), none, none, of, _exists(moments))
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of[counted] = place.reshape(-1)
    nbytes = np.bincount(of[counted], t["nbytes"][counted], len(first))
    gain = np.bincount(of[counted], work.short_ns[counted], len(first))
    return Shorts(keys[0][first], alive[counted[first]], nbytes, gain, of, _exists(moments))


def _exists(moments: NDArray[np.int64]) -> NDArray[np.bool_]:
    exists = moments >= 0
    exists[:, 0] = True
    return exists


def gains(shorts: Shorts, prices: NDArray[np.float64], slow: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(groups,) whether a group is worth its room at (L, k) prices of instants and (L,) prices of slow time."""
    paid = (prices[shorts.layer] * shorts.mask).sum(axis=1) * shorts.nbytes
    return shorts.gain_ns * slow[shorts.layer] > paid
