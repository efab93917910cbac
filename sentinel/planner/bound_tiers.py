"""What the middle tiers can save at most, for the bound of machines with several slower tiers.

Slow memory is taken to cost what its last tier costs; every tier before it saves something of that, layer by layer.
What is used in a layer and alive all through it is then somewhere, so a tier saves no more than by the best use of its
bytes: a fractional knapsack. What is born or dies in the layer takes turns, and counts as if it were alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.planner.relaxed import Groups


def least_extra_ns(profile: Profile, machine: Machine) -> list[NDArray[np.float64]]:
    """By slower tier, (m,) the least extra time of each access in it or a tier behind it: never falls with the tier."""
    extra = [slow_extra_ns(profile, machine, tier) for tier in range(1, len(machine.tiers))]
    for tier in range(len(extra) - 2, -1, -1):
        extra[tier] = np.minimum(extra[tier], extra[tier + 1])
    return extra


def saved_ns(
    profile: Profile, groups: Groups, extra_ns: NDArray[np.float64], use_ns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(uses of `groups`,) `use_ns` less what a tier costs in which each access takes at least `extra_ns`."""
    a = profile.accesses
    group = groups.of[a["tensor"]]
    rows = np.flatnonzero(group >= 0)
    key = groups.use_group * profile.n_layers + groups.use_layer
    mine = group[rows] * profile.n_layers + a["layer"][rows].astype(np.int64)
    place = np.searchsorted(key, mine)
    known = np.flatnonzero((place < len(key)) & (key[np.minimum(place, len(key) - 1)] == mine))
    density = np.full(len(key), np.inf)
    rows = rows[known]
    np.minimum.at(density, place[known], extra_ns[rows] / profile.tensors["nbytes"][a["tensor"][rows]])
    return np.asarray(np.maximum(use_ns - density * groups.nbytes[groups.use_group], 0.0), np.float64)


def most_saved_ns(
    profile: Profile, groups: Groups, saved: NDArray[np.float64], capacity_bytes: int
) -> NDArray[np.float64]:
    """(L,) most that so many bytes can save in each layer, of what all uses there would save together."""
    group, layer, length = groups.use_group, groups.use_layer, profile.n_layers
    members = np.flatnonzero(groups.of >= 0)
    nbytes = profile.tensors["nbytes"][members]
    fitting = np.bincount(groups.of[members], np.minimum(nbytes, capacity_bytes), len(groups.nbytes))
    saved = saved * (fitting / groups.nbytes)[group]
    age = (layer - groups.start[group]) % length
    lives = groups.stop[group] - groups.start[group]
    turns = ~groups.persistent[group] & ((age == 0) | (age == lives - 1))
    out = np.bincount(layer[turns], saved[turns], length).astype(np.float64)
    rows = np.flatnonzero(~turns & (saved > 0))
    nbytes = np.maximum(fitting[group], 1.0)
    rows = rows[np.lexsort((-saved[rows] / nbytes[rows], layer[rows]))]
    first = np.searchsorted(layer[rows], layer[rows])
    before = np.cumsum(nbytes[rows]) - nbytes[rows]
    room = capacity_bytes - (before - before[first]) if len(rows) else before
    share = np.clip(room / nbytes[rows], 0.0, 1.0)
    return np.asarray(out + np.bincount(layer[rows], saved[rows] * share, length), np.float64)
