"""Tensors as the bound sees them: groups of like fate, and the instants at which room is counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.units import mix

_GRAIN = 0.005
"""Tensors whose extra times a byte differ by less in each layer may be one group, which gets the smaller ones: a bound
may understate, never overstate."""
_NEGLIGIBLE = 2e-5
"""Tensors below this share of the budget cost the relaxation neither room nor time."""
_INSTANTS = 3


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
    density = extra_ns / nbytes[a["tensor"]]
    grade = np.where(density > 0, np.rint(np.log(np.maximum(density, 1e-300)) / _GRAIN), 1 << 40).astype(np.int64)
    print_of = np.zeros(n, np.uint64)
    np.add.at(print_of, a["tensor"], mix(a["layer"].astype(np.uint64) * np.uint64(1 << 44) + grade.astype(np.uint64)))
    life = np.stack(
        [t["start"].astype(np.int64), t["stop"].astype(np.int64), t["persistent"].astype(np.int64), _alive_at(profile)]
    )
    rows = np.flatnonzero(kept)
    keys = np.concatenate([life[:, rows], print_of[rows].view(np.int64)[None]])
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of = np.full(n, -1, np.int64)
    of[rows] = place.reshape(-1)
    head = rows[first]
    total = np.bincount(of[rows], nbytes[rows], len(head)).astype(np.float64)
    used = np.flatnonzero((of[a["tensor"]] >= 0) & (density > 0))
    pair = of[a["tensor"][used]] * profile.n_layers + a["layer"][used]
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
    length, n = profile.n_layers, profile.n_events
    out = np.full((length, _INSTANTS), -1, np.int64)
    moving = np.flatnonzero(~t["persistent"] & t["managed"])
    born, died, layer = t["born_event"][moving], t["died_event"][moving], t["start"][moving]
    delta = np.zeros(2 * n + 1, np.int64)
    np.add.at(delta, born, t["nbytes"][moving])
    np.add.at(delta, died, -t["nbytes"][moving])
    turn = delta.cumsum()
    alive = turn[:n] + turn[n : 2 * n]
    for k in range(length):
        rows = t[moving[layer == k]]
        events = np.unique(rows["born_event"])
        spoken = np.zeros(len(rows), bool)
        for i in range(min(_INSTANTS, len(events))):
            score = alive[events] if i == 0 else np.where(_bytes_at(rows[~spoken], events, n) > 0, alive[events], -1)
            best = int(score.argmax())
            if score[best] < 0:
                break
            out[k, i] = event = events[best]
            spoken |= ((event >= rows["born_event"]) & (event < rows["died_event"])) | (event + n < rows["died_event"])
    return out


def _bytes_at(t: NDArray[np.void], events: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """(events,) bytes of tensors `t` that are alive at each of these events, which ascend; `n` events are the ring."""
    change = np.zeros(len(events) + 1, np.int64)
    change[0] = t["nbytes"].sum()  # those alive before the ring's end and after it; the others end at event 0 or before
    for at, sign in ((t["died_event"] - n, -1), (t["born_event"], 1), (t["died_event"], -1)):
        np.add.at(change, np.searchsorted(events, at), sign * t["nbytes"])
    return change.cumsum()[:-1]


def _alive_at(profile: Profile) -> NDArray[np.int64]:
    """(n,) bits of the instants of its first and its last layer at which each tensor is alive."""
    t = profile.tensors
    moments = instants(profile)
    out = np.zeros(len(t), np.int64)
    born, died = t["born_event"], t["died_event"]
    for place, layer in enumerate((t["start"], (t["stop"] - 1) % profile.n_layers)):
        for i in range(_INSTANTS):
            event = moments[layer, i]
            alive = ((event >= born) & (event < died)) | (event + profile.n_events < died)
            out |= (alive & (event >= 0)).astype(np.int64) << (place * _INSTANTS + i)
    out[t["persistent"]] = 0
    return out


@dataclass(frozen=True, eq=False)
class Room:
    """Rows of room, one an instant. Who holds some: (row, group, layers since the group's birth) of groups that may
    move, which hold it in every layer of their life, and (row, group) of what never moves, which shares it by events.
    """

    n_rows: int
    moving: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    staying: tuple[NDArray[np.int64], NDArray[np.int64]]


def room_rows(profile: Profile, groups: Groups) -> Room:
    """The room of every layer at its instants; layers without a birth have one. A group of one layer only stays."""
    length = profile.n_layers
    moments = instants(profile)
    rows = np.full(moments.shape, -1, np.int64)
    exists = moments >= 0
    exists[:, 0] = True
    rows[exists] = np.arange(int(exists.sum()))
    t = profile.tensors
    first = np.full(len(groups.nbytes), -1, np.int64)
    members = np.flatnonzero(groups.of >= 0)
    first[groups.of[members[::-1]]] = members[::-1]
    width = groups.stop - groups.start
    group = np.repeat(np.arange(len(width)), width)
    age = np.arange(len(group)) - np.repeat(np.cumsum(width) - width, width)
    layer = (groups.start[group] + age) % length
    born, died = t["born_event"][first[group]], t["died_event"][first[group]]
    edge = (age == 0) | (age == width[group] - 1)
    moves, stays = groups.persistent | (width > 1), ~groups.persistent
    moving, staying = [], []
    for i in range(_INSTANTS):
        event = moments[layer, i]
        alive = ((event >= born) & (event < died)) | (event + profile.n_events < died)
        here = exists[layer, i]
        held = here & moves[group]
        moving.append(np.stack([rows[layer, i][held], group[held], age[held]]))
        # away from the ends of its life a tensor is alive all through the layer
        held = here & stays[group] & (~edge | (alive & (event >= 0)))
        staying.append(np.stack([rows[layer, i][held], group[held]]))
    a, b = np.concatenate(moving, axis=1), np.concatenate(staying, axis=1)
    return Room(int(exists.sum()), (a[0], a[1], a[2]), (b[0], b[1]))
