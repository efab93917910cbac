"""What may stay in fast memory all its life and share its room by events: short-lived tensors, and long-lived ones
that never migrate. At some instants of a layer each of them is alive, at others its room is another's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES
from sentinel.planner.load import spread
from sentinel.planner.relaxed import instants
from sentinel.planner.workload import Workload

_NEGLIGIBLE = 1e-4
MOST_ENTRIES = 100_000


@dataclass(frozen=True, eq=False)
class Stays:
    """Groups of like fate, the short-lived ones first.

    `row, row_group, row_bytes`: what a group takes of the room of an instant; rows count the pairs (layer,
    instant) that `exists` (L, k) has, in order. `use_layer, use_group, use_ns`: what it saves. `family`: of a
    long-lived group, -1 of a short-lived one. `of`: group of each of `units.short`, -1: too small to count.
    """

    nbytes: NDArray[np.float64]
    family: NDArray[np.int64]
    row: NDArray[np.int64]
    row_group: NDArray[np.int64]
    row_bytes: NDArray[np.float64]
    use_layer: NDArray[np.int64]
    use_group: NDArray[np.int64]
    use_ns: NDArray[np.float64]
    of: NDArray[np.int64]
    exists: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def row_layer(self) -> NDArray[np.int64]:
        """(rows,) layer of each instant."""
        return np.nonzero(self.exists)[0]


def make_stays(work: Workload, merged: Workload, of: NDArray[np.int64], *, most_entries: int = MOST_ENTRIES) -> Stays:
    """The groups of a workload. `merged`, `of`: its families and the family of each unit.

    Long-lived groups are left out beyond so many (group, instant) pairs; those that live longest first.
    """
    moments = instants(work.profile)
    exists = moments >= 0
    exists[:, 0] = True
    rows = (np.cumsum(exists.reshape(-1)) - 1).reshape(exists.shape)
    of_short, shorts = _short_groups(work, moments, rows)
    entries, families = _long_groups(work, of, moments, rows, exists, most_entries)
    n = len(shorts[0])
    number = np.full(len(merged.units), -1, np.int64)
    number[families] = n + np.arange(len(families))
    used = number[merged.use_unit] >= 0
    nbytes, layer, gain, short_rows, short_group, short_bytes = shorts
    return Stays(
        nbytes=np.append(nbytes, merged.units.nbytes[families].astype(np.float64)),
        family=np.append(np.full(n, -1, np.int64), families),
        row=np.append(short_rows, entries[0]),
        row_group=np.append(short_group, number[entries[1]]),
        row_bytes=np.append(short_bytes, entries[2].astype(np.float64)),
        use_layer=np.append(layer, merged.use_layer[used] % work.n_layers),
        use_group=np.append(np.arange(n), number[merged.use_unit[used]]),
        use_ns=np.append(gain, merged.use_ns[used]),
        of=of_short,
        exists=exists,
    )


def worth_it(stays: Stays, prices: NDArray[np.float64], slow: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(groups,) short-lived groups worth their room at (L, k) prices of instants and (L,) prices of slow time."""
    paid = np.bincount(stays.row_group, prices[stays.exists][stays.row] * stays.row_bytes, len(stays))
    saved = np.bincount(stays.use_group, stays.use_ns * slow[stays.use_layer], len(stays))
    return np.asarray((stays.family < 0) & (saved > paid))


def _short_groups(
    work: Workload, moments: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[NDArray[np.generic], ...]]:
    """(group of each short-lived tensor, (bytes, layer, gain, and the entries of room) of the groups)."""
    t = work.profile.tensors[work.units.short]
    event = moments[t["start"]]
    alive = (event >= t["born_event"][:, None]) & (event < t["died_event"][:, None])
    alive |= (event >= 0) & (event + work.profile.n_events < t["died_event"][:, None])
    grade = np.rint(np.log(np.maximum(work.short_ns / t["nbytes"], 1e-30)) * 20).astype(np.int64)
    counted = np.flatnonzero((t["nbytes"] >= work.budget_bytes * _NEGLIGIBLE) & alive.any(axis=1))
    of = np.full(len(t), -1, np.int64)
    if not len(counted):
        i, f = np.zeros(0, np.int64), np.zeros(0)
        return of, (f, i, f, i, i, f)
    bits = (alive[counted] << np.arange(alive.shape[1])).sum(axis=1)
    keys = np.stack([t["start"][counted].astype(np.int64), bits.astype(np.int64), grade[counted]])
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of[counted] = place.reshape(-1)
    nbytes = np.bincount(of[counted], t["nbytes"][counted], len(first))
    gain = np.bincount(of[counted], work.short_ns[counted], len(first))
    layer = keys[0][first]
    group, instant = np.nonzero(alive[counted[first]])
    return of, (nbytes, layer, gain, rows[layer[group], instant], group, nbytes[group])


def _long_groups(
    work: Workload,
    of: NDArray[np.int64],
    moments: NDArray[np.int64],
    rows: NDArray[np.int64],
    exists: NDArray[np.bool_],
    most_entries: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """((row, family, bytes) of long-lived transients, and the families among them that are taken).

    Between its first and its last layer a unit is alive throughout; in these two its tensors' events tell.
    """
    units, length = work.units, work.n_layers
    moving = np.flatnonzero(~units.persistent)
    lives = (units.stop - units.start)[moving]
    order = np.argsort(lives, kind="stable")
    taken = moving[order[np.cumsum(lives[order]) * exists.shape[1] <= most_entries]]
    families = np.setdiff1d(of[taken], of[np.setdiff1d(moving, taken)])
    chosen = moving[np.isin(of[moving], families)]
    layer, which = spread(units.start[chosen] + 1, units.stop[chosen] - 1, length)
    pieces = []
    for i in range(exists.shape[1]):
        here = exists[layer, i]
        unit = chosen[which[here]]
        pieces.append(np.stack([rows[layer[here], i], of[unit], units.nbytes[unit]]))
    tensors = units.tensors[np.isin(units.unit_of[units.tensors], chosen)]
    t = work.profile.tensors[tensors]
    family, pages = of[units.unit_of[tensors]], -(-t["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    for edge in (t["start"].astype(np.int64), (t["stop"].astype(np.int64) - 1) % length):
        for i in range(exists.shape[1]):
            event = moments[edge, i]
            alive = (event >= t["born_event"]) & (event < t["died_event"])
            alive |= (event >= 0) & (event + work.profile.n_events < t["died_event"])
            pieces.append(np.stack([rows[edge[alive], i], family[alive], pages[alive]]))
    found = np.concatenate(pieces, axis=1)
    return found, families
