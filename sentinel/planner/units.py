"""What a planner decides about: units. A unit is one large tensor or a co-allocation group of small ones.

Long-lived tensors of one layer set are grouped, hottest first, and never share a page with another set
(paper, section IV). Short-lived ones are not units: they go to the reserved pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.packing import SMALL_ALIGN

LARGE_BYTES = 1 << 16
"""Tensors of at least this size are units of their own."""


@dataclass(frozen=True, eq=False)
class Units:
    """Columns, one row a unit; persistent units first, in profile order, then transient ones by birth.

    `tensors[first[u]:first[u + 1]]` lie one after the other in unit u, tensor i at `inner[i]` bytes from its
    beginning (`inner` is by tensor). `nbytes`: whole pages. `short`: tensors of the reserved pool.
    """

    nbytes: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    tensors: NDArray[np.int64]
    first: NDArray[np.int64]
    inner: NDArray[np.int64]
    unit_of: NDArray[np.int64]
    short: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nbytes)

    def members(self, unit: int) -> NDArray[np.int64]:
        """Indexes of the tensors of one unit."""
        return self.tensors[self.first[unit] : self.first[unit + 1]]


def make_units(profile: Profile) -> Units:
    """The units of the managed tensors of `profile`."""
    t = profile.tensors
    n = len(t)
    layer_set = _layer_sets(profile)
    pages = -(-t["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    managed = t["managed"]
    persistent = np.flatnonzero(managed & t["persistent"])
    short = np.flatnonzero(managed & profile.short_lived())
    long = np.flatnonzero(managed & ~t["persistent"] & ~profile.short_lived())
    group_p = _persistent_groups(persistent, pages, layer_set)
    order_l, group_l = _transient_groups(profile, long, layer_set)
    tensors = np.concatenate([persistent, order_l])
    group = np.concatenate([group_p, group_l + (group_p[-1] + 1 if len(group_p) else 0)])
    first = np.searchsorted(group, np.arange(int(group[-1]) + 2 if len(group) else 1))
    slot = pages[tensors]  # a persistent tensor has pages of its own, and so has a large transient
    small = ~t["persistent"][tensors] & (t["nbytes"][tensors] < PAGE_BYTES)
    slot[small] = -(-t["nbytes"][tensors][small] // SMALL_ALIGN) * SMALL_ALIGN
    running = np.cumsum(slot) - slot
    inner = np.zeros(n, np.int64)
    inner[tensors] = running - running[first[group]] if len(group) else running
    head = tensors[first[:-1]]
    total = np.add.reduceat(slot, first[:-1]) if len(head) else np.zeros(0, np.int64)
    unit_of = np.full(n, -1, np.int64)
    unit_of[tensors] = group
    return Units(
        nbytes=-(-total // PAGE_BYTES) * PAGE_BYTES,
        start=t["start"][head].astype(np.int64),
        stop=t["stop"][head].astype(np.int64),
        persistent=t["persistent"][head].copy(),
        tensors=tensors,
        first=first,
        inner=inner,
        unit_of=unit_of,
        short=short,
    )


def _layer_sets(profile: Profile) -> NDArray[np.uint64]:
    """(n,) a fingerprint of the exact set of layers in which each tensor is used (same set, same number)."""
    a = profile.accesses
    mixed = mix(a["layer"].astype(np.uint64) + np.uint64(1))
    out = np.zeros(len(profile.names), np.uint64)
    np.add.at(out, a["tensor"], mixed)
    return out


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64: distinct sets of a few thousand layers get distinct sums but for odds of 2**-64 a pair."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _persistent_groups(
    rows: NDArray[np.int64], pages: NDArray[np.int64], layer_set: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Group number of each persistent tensor: runs of small neighbours with one layer set, up to LARGE_BYTES each."""
    if not len(rows):
        return np.zeros(0, np.int64)
    alone = pages[rows] >= LARGE_BYTES
    new = np.ones(len(rows), bool)
    new[1:] = (layer_set[rows][1:] != layer_set[rows][:-1]) | alone[1:] | alone[:-1]
    return np.cumsum(new) - 1


def _transient_groups(
    profile: Profile, rows: NDArray[np.int64], layer_set: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Long-lived transients in plan order and their group numbers.

    Key: birth, death, exact layer set; within a key large tensors stand alone, the others by accesses, descending.
    """
    if not len(rows):
        return rows, np.zeros(0, np.int64)
    t, a = profile.tensors, profile.accesses
    hot = np.zeros(len(t), np.int64)
    np.add.at(hot, a["tensor"], np.maximum(a["reads"], 0) + np.maximum(a["writes"], 0))
    large = t["nbytes"][rows] >= LARGE_BYTES
    below_a_page = t["nbytes"][rows] < PAGE_BYTES  # last, so that larger ones stay page-aligned
    key = (rows, -hot[rows], below_a_page, large, layer_set[rows], t["stop"][rows], t["start"][rows])
    order = rows[np.lexsort(key)]
    large = t["nbytes"][order] >= LARGE_BYTES
    new = np.ones(len(order), bool)
    same = np.ones(len(order) - 1, bool)
    for column in (layer_set[order], t["stop"][order], t["start"][order]):
        same &= column[1:] == column[:-1]
    new[1:] = ~same | large[1:] | large[:-1]
    return order, np.cumsum(new) - 1
