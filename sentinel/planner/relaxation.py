"""What the linear programs count: classes of tensors that are alike, and the instants at which room is counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.workload import Workload, hash64

_GAIN_STEP = 0.01
"""Gains a byte that differ by less (as a share) count as the same."""


def alike(*keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(first row of each combination of `keys`, in the order of these; (rows,) which combination each row has).

    `keys`: (rows,) each, the most significant one first. `np.unique` of columns compares row by row: 50 times as slow.
    """
    order = np.lexsort(keys[::-1])
    new = np.ones(len(order), bool)
    new[1:] = False
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(new) - 1
    return order[new], of


def merge_alike(work: Workload) -> tuple[Workload, NDArray[np.int64]]:
    """(the workload with classes in the place of units, (units,) class of each unit)."""
    units = work.units
    if not len(units):
        return work, np.zeros(0, np.int64)
    density = work.use_ns / units.nbytes[work.use_unit]
    grade = np.rint(np.log(np.maximum(density, 1e-300)) / _GAIN_STEP).astype(np.int64)
    marks = hash64(hash64(work.use_layer.astype(np.uint64) + np.uint64(1)) ^ grade.astype(np.uint64))
    fate = np.zeros(len(units), np.uint64)
    np.add.at(fate, work.use_unit, marks)
    first, of = alike(~units.persistent, units.start, units.stop, fate, work.slow_tier)
    order = np.argsort(first)  # classes in the order of their first units
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of, first = number[of], first[order]
    uses = np.flatnonzero(np.isin(work.use_unit, first))
    heads = of[work.use_unit[uses]]
    uses = uses[np.argsort(heads, kind="stable")]
    heads = np.sort(heads)
    # the j-th use of a unit is the j-th use of its class
    ordinal = np.arange(len(work.use_unit)) - work.first_use[work.use_unit]
    first_use = np.searchsorted(heads, np.arange(len(first) + 1))
    total = np.bincount(first_use[of[work.use_unit]] + ordinal, work.use_ns, len(uses)).astype(np.float64)
    merged = replace(
        units,
        nbytes=np.bincount(of, units.nbytes, len(first)).astype(np.int64),
        start=units.start[first],
        stop=units.stop[first],
        persistent=units.persistent[first],
    )
    return (
        replace(
            work,
            units=merged,
            use_unit=heads,
            use_layer=work.use_layer[uses],
            use_ns=total,
            first_use=first_use,
            slow_tier=work.slow_tier[first],
            moves_of=np.bincount(of, work.moves_of, len(first)).astype(np.int64),
        ),
        of,
    )


_DENSITY_STEP = 0.005
"""Tensors whose extra times a byte differ by less in each layer may be one group, which gets the smaller ones: a bound
may understate, never overstate."""

_NEGLIGIBLE = 2e-5
"""Tensors below this share of the budget cost the relaxation neither room nor time."""

INSTANTS = 3


@dataclass(frozen=True, eq=False)
class Groups:
    """Columns, one row a group; `use_*`: one row a (group, layer): extra ns if all of it is served by slow memory.

    `of`: group of each tensor, -1 for those left out.
    """

    nbytes: NDArray[np.float64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    use_group: NDArray[np.int64]
    use_layer: NDArray[np.int64]
    use_ns: NDArray[np.float64]
    of: NDArray[np.int64]


def make_groups(profile: Profile, extra_ns: NDArray[np.float64], budget: int) -> Groups:
    """Managed tensors that matter, grouped by life, exact layers of use and extra time a byte in each.

    Short-lived tensors are grouped by the instants at which they are alive as well.
    """
    t, a = profile.tensors, profile.accesses
    n = len(t)
    nbytes = t["nbytes"].astype(np.float64)
    kept = t["managed"] & (nbytes >= max(budget, PAGE_BYTES) * _NEGLIGIBLE)
    density = extra_ns / nbytes[a["extent"]]
    grade = np.where(density > 0, np.rint(np.log(np.maximum(density, 1e-300)) / _DENSITY_STEP), 1 << 40).astype(
        np.int64
    )
    uses = np.zeros(n, np.uint64)
    np.add.at(uses, a["extent"], hash64(a["layer"].astype(np.uint64) * np.uint64(1 << 44) + grade.astype(np.uint64)))
    rows = np.flatnonzero(kept)
    life = (t["start"], t["stop"], t["persistent"], _alive_bits(profile), uses.view(np.int64))
    first, place = alike(*(key[rows] for key in life))
    of = np.full(n, -1, np.int64)
    of[rows] = place
    head = rows[first]
    total = np.bincount(of[rows], nbytes[rows], len(head)).astype(np.float64)
    used = np.flatnonzero((of[a["extent"]] >= 0) & (density > 0))
    pair = of[a["extent"][used]] * profile.n_layers + a["layer"][used]
    key, where = np.unique(pair, return_inverse=True)
    least = np.full(len(key), np.inf)
    np.minimum.at(least, where, density[used])
    group = key // profile.n_layers
    return Groups(
        total,
        t["start"][head].astype(np.int64),
        t["stop"][head].astype(np.int64),
        t["persistent"][head].copy(),
        group,
        key % profile.n_layers,
        least * total[group],
        of,
    )


def instants(profile: Profile) -> NDArray[np.int64]:
    """(L, k) events, of each layer those at which the most bytes are alive; -1 where there are fewer.

    The second and third are chosen among events that the first ones do not speak for: with other tensors alive.
    """
    t = profile.tensors
    n = profile.n_events
    out = np.full((profile.n_layers, INSTANTS), -1, np.int64)
    moving = np.flatnonzero(~t["persistent"] & t["managed"])
    if not len(moving):
        return out
    born, died, layer = t["born_event"][moving], t["died_event"][moving], t["start"][moving].astype(np.int64)
    delta = np.zeros(2 * n + 1, np.int64)
    np.add.at(delta, born, t["nbytes"][moving])
    np.add.at(delta, died, -t["nbytes"][moving])
    turn = delta.cumsum()
    # one place for each layer and event of a birth in it, by layer; of each tensor those at which it is alive:
    # from its own on, and from its layer's first if it lives beyond the ring's end
    places = np.unique(layer * 2 * n + born)
    layers, first, of = np.unique(places // (2 * n), return_index=True, return_inverse=True)
    events = places % (2 * n)
    alive = (turn[:n] + turn[n : 2 * n])[events]
    mine = np.searchsorted(layers, layer)
    low, high = np.searchsorted(places, layer * 2 * n + born), np.searchsorted(places, layer * 2 * n + died)
    upto = np.maximum(np.searchsorted(places, layer * 2 * n + died - n), first[mine])
    spoken = np.zeros(len(moving), bool)
    for i in range(INSTANTS):
        others = np.zeros(len(places) + 1, np.int64)
        for start, stop in ((low, high), (first[mine], upto)):
            np.add.at(others, start[~spoken], 1)
            np.add.at(others, stop[~spoken], -1)
        score = np.where(others.cumsum()[:-1] > 0, alive, -1) if i else alive
        most = np.maximum.reduceat(score, first)
        hits = np.flatnonzero(score == most[of])
        best = hits[np.searchsorted(of[hits], np.arange(len(layers)))]  # of equals the first
        chosen = np.where(most >= 0, events[best], -1)
        out[layers, i] = chosen
        spoken |= alive_at(chosen[mine], born, died, n)
    return out


def alive_at(
    event: NDArray[np.int64], born: NDArray[np.int64], died: NDArray[np.int64], n_events: int
) -> NDArray[np.bool_]:
    """Whether what lives in [born, died) of the unrolled ring is alive at `event` of the ring; never at -1."""
    return np.asarray((event >= 0) & (((event >= born) & (event < died)) | (event + n_events < died)))


def _alive_bits(profile: Profile) -> NDArray[np.int64]:
    """(n,) bits of the instants of its first and its last layer at which each tensor is alive."""
    t = profile.tensors
    moments = instants(profile)
    out = np.zeros(len(t), np.int64)
    born, died = t["born_event"], t["died_event"]
    for place, layer in enumerate((t["start"], (t["stop"] - 1) % profile.n_layers)):
        for i in range(INSTANTS):
            alive = alive_at(moments[layer, i], born, died, profile.n_events)
            out |= alive.astype(np.int64) << (place * INSTANTS + i)
    out[t["persistent"]] = 0
    return out
