"""What the linear programs count: classes of units, instants at which room is counted, tensors that may be pinned.

The last are in fast memory all their life and share room by events with others that are: short-lived tensors, and
long-lived ones that never migrate. At some instants of a layer one of them is alive, at others its room is another's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.core.profile import Profile
from sentinel.core.ragged import ring_layers
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
    when = 2 * work.use_layer + (work.touched & work.fetched[work.use_unit]) + 1
    marks = hash64(hash64(when.astype(np.uint64)) ^ grade.astype(np.uint64))
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
            touched=work.touched[uses],
            first_use=first_use,
            slow_tier=work.slow_tier[first],
            moves_of=np.bincount(of, work.moves_of, len(first)).astype(np.int64),
        ),
        of,
    )


INSTANTS = 3


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
    # one place for each layer and event of a birth in it, by layer; of each tensor those at which it is alive:
    # from its own on, and from its layer's first if it lives beyond the ring's end
    places = np.unique(layer * 2 * n + born)
    layers, first, of = np.unique(places // (2 * n), return_index=True, return_inverse=True)
    events = places % (2 * n)
    alive = ring_sum(np.zeros(len(moving), np.int64), born, died, t["nbytes"][moving], 1, n)[0][events]
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


_NEGLIGIBLE = 1e-4

MOST_ENTRIES = 100_000


@dataclass(frozen=True, eq=False)
class PinnedCandidates:
    """Groups of tensors that are alike to the program, the short-lived ones first.

    `row, row_group, row_bytes`: what a group takes of the room of an instant; rows count the pairs (layer,
    instant) that `exists` (L, k) has, in order. `use_layer, use_group, use_ns`: what it saves. `unit_class`: of a
    long-lived group, -1 of a short-lived one. `of`: group of each of `units.short`, -1: too small to count.
    """

    nbytes: NDArray[np.float64]
    unit_class: NDArray[np.int64]
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


def find_candidates(
    work: Workload, merged: Workload, of: NDArray[np.int64], *, most_entries: int = MOST_ENTRIES
) -> PinnedCandidates:
    """The groups of a workload. `merged`, `of`: its classes and the unit_class of each unit.

    Long-lived groups are left out beyond so many (group, instant) pairs; those that live longest first.
    """
    moments = instants(work.profile)
    exists = moments >= 0
    exists[:, 0] = True
    rows = (np.cumsum(exists.reshape(-1)) - 1).reshape(exists.shape)
    of_short, shorts = _short_groups(work, moments, rows)
    entries, classes = _long_groups(work, of, moments, rows, exists, most_entries)
    n = len(shorts[0])
    number = np.full(len(merged.units), -1, np.int64)
    number[classes] = n + np.arange(len(classes))
    used = number[merged.use_unit] >= 0
    nbytes, layer, gain, short_rows, short_group, short_bytes = shorts
    return PinnedCandidates(
        nbytes=np.append(nbytes, merged.units.nbytes[classes].astype(np.float64)),
        unit_class=np.append(np.full(n, -1, np.int64), classes),
        row=np.append(short_rows, entries[0]),
        row_group=np.append(short_group, number[entries[1]]),
        row_bytes=np.append(short_bytes, entries[2].astype(np.float64)),
        use_layer=np.append(layer, merged.use_layer[used] % work.n_layers),
        use_group=np.append(np.arange(n), number[merged.use_unit[used]]),
        use_ns=np.append(gain, merged.use_ns[used]),
        of=of_short,
        exists=exists,
    )


def worth_pinning(
    candidates: PinnedCandidates, prices: NDArray[np.float64], slow: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """(groups,) short-lived groups worth their room at (L, k) prices of instants and (L,) prices of slow time."""
    paid = np.bincount(
        candidates.row_group, prices[candidates.exists][candidates.row] * candidates.row_bytes, len(candidates)
    )
    saved = np.bincount(candidates.use_group, candidates.use_ns * slow[candidates.use_layer], len(candidates))
    return np.asarray((candidates.unit_class < 0) & (saved > paid))


def _short_groups(
    work: Workload, moments: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[NDArray[np.generic], ...]]:
    """(group of each short-lived tensor, (bytes, layer, gain, and the entries of room) of the groups)."""
    t = work.profile.tensors[work.units.short]
    born, died = t["born_event"][:, None], t["died_event"][:, None]
    alive = alive_at(moments[t["start"]], born, died, work.profile.n_events)
    grade = np.rint(np.log(np.maximum(work.short_ns / t["nbytes"], 1e-30)) * 20).astype(np.int64)
    counted = np.flatnonzero((t["nbytes"] >= work.budget_bytes * _NEGLIGIBLE) & alive.any(axis=1))
    of = np.full(len(t), -1, np.int64)
    if not len(counted):
        i, f = np.zeros(0, np.int64), np.zeros(0)
        return of, (f, i, f, i, i, f)
    bits = (alive[counted] << np.arange(alive.shape[1])).sum(axis=1)
    first, place = alike(t["start"][counted], bits, grade[counted])
    of[counted] = place
    nbytes = np.bincount(of[counted], t["nbytes"][counted], len(first))
    gain = np.bincount(of[counted], work.short_ns[counted], len(first))
    layer = t["start"][counted[first]].astype(np.int64)
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
    """((row, unit_class, bytes) of long-lived transients, and the classes among them that are taken).

    Between its first and its last layer a unit is alive throughout; in these two its tensors' events tell.
    """
    units, length = work.units, work.n_layers
    moving = np.flatnonzero(~units.persistent)
    lives = (units.stop - units.start)[moving]
    order = np.argsort(lives, kind="stable")
    taken = moving[order[np.cumsum(lives[order]) * exists.shape[1] <= most_entries]]
    classes = np.setdiff1d(of[taken], of[np.setdiff1d(moving, taken)])
    chosen = moving[np.isin(of[moving], classes)]
    layer, which = ring_layers(units.start[chosen] + 1, units.stop[chosen] - 1, length)
    pieces = []
    for i in range(exists.shape[1]):
        here = exists[layer, i]
        unit = chosen[which[here]]
        pieces.append(np.stack([rows[layer[here], i], of[unit], units.nbytes[unit]]))
    tensors = units.tensors[np.isin(units.unit_of[units.tensors], chosen)]
    t = work.profile.tensors[tensors]
    unit_class, pages = of[units.unit_of[tensors]], -(-t["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    for edge in (t["start"].astype(np.int64), (t["stop"].astype(np.int64) - 1) % length):
        for i in range(exists.shape[1]):
            alive = alive_at(moments[edge, i], t["born_event"], t["died_event"], work.profile.n_events)
            pieces.append(np.stack([rows[edge[alive], i], unit_class[alive], pages[alive]]))
    found = np.concatenate(pieces, axis=1)
    return found, classes


def layer_base_ms(
    work: Workload, candidates: PinnedCandidates | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(L,) ms of each layer with everything in slow memory, by traffic; and the least it takes whatever is where.

    Small short-lived tensors count as fast (see `PinnedCandidates`); without `candidates` none of them is counted.
    """
    slow = np.bincount(work.use_layer % work.n_layers, work.use_ns, work.n_layers).astype(np.float64)
    if candidates is not None:
        short = candidates.unit_class[candidates.use_group] < 0
        slow += np.bincount(candidates.use_layer[short], candidates.use_ns[short], work.n_layers)
    roofline = work.machine.flops_per_s is not None
    base = work.traffic_ns + work.pool_ns + slow
    least = np.maximum(work.compute_ns, work.traffic_ns)
    if not roofline:
        base, least = base + work.compute_ns, work.compute_ns + work.traffic_ns
    return base / 1e6, least / 1e6
