"""Episodes: stretches of units in fast memory, and what they hold and move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.planner.workload import Workload


@dataclass(frozen=True, eq=False)
class Choice:
    """Per use (row of `Workload.use_*`): whether fast memory serves it, and what happens in the gap behind it.

    `parted[r]`: between two fast uses the unit goes to slow memory and comes back. A unit that leaves does so in
    layers [leave, left), one that comes in [arrive, arrived); all unrolled from the use's own layer.
    """

    fast: NDArray[np.bool_]
    parted: NDArray[np.bool_]
    leave: NDArray[np.int64]
    left: NDArray[np.int64]
    arrive: NDArray[np.int64]
    arrived: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Episodes:
    """One row each; layers unrolled, `held_from` in (-L, 2L).

    Room is held in [held_from, held_until). `promote`: a promotion runs in [held_from, begin), else the unit is born
    in fast or stays there for good. `demote`: a demotion runs in [end, held_until). `value_ns`: extra time saved.
    """

    unit: NDArray[np.int64]
    held_from: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    held_until: NDArray[np.int64]
    promote: NDArray[np.bool_]
    demote: NDArray[np.bool_]
    value_ns: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.unit)


def gaps(work: Workload) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Per use: (row of the unit's next use, its unrolled layer, whether there is one). Persistent units go round."""
    return work.gaps


def bridge_shortest_gaps(
    work: Workload,
    parted: NDArray[np.bool_],
    free: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Of the gaps that are `parted`, those left after bridging them from the shortest on while there is room.

    A bridged gap holds its unit's bytes of the (L,) `free` in unrolled layers [`start`, `stop`), one of each a use.
    """
    nbytes, left, parted = work.units.nbytes[work.use_unit], free.copy(), parted.copy()
    for row in np.flatnonzero(parted)[np.argsort((stop - start)[parted], kind="stable")].tolist():
        layers = np.arange(start[row], stop[row]) % work.n_layers
        if not len(layers) or left[layers].min() >= nbytes[row]:
            left[layers] -= nbytes[row]
            parted[row] = False
    return parted


def served_uses(work: Workload, choice: Choice, granted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(uses,) whether one of the `granted` of `episodes_of(work, choice)` serves each use."""
    if not len(granted):
        return np.zeros(len(work.use_unit), bool)
    heads, _, whole = _stretches(work, choice)
    unit, first = work.use_unit, np.searchsorted(work.use_unit[heads], np.arange(len(work.units) + 1))
    at = np.searchsorted(heads, np.arange(len(unit)), side="right") - 1
    at = np.where(at < first[unit], first[unit + 1] - 1, at)  # round the ring: the unit's last one
    episode = np.where(first[unit] < first[unit + 1], at, len(heads) + np.searchsorted(whole, unit))
    return choice.fast & granted[np.minimum(episode, len(granted) - 1)]


def _stretches(work: Workload, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """First and last use of each stretch of uses in fast memory, and the units that never leave it."""
    unit, fast = work.use_unit, choice.fast
    follower, _, has_gap = work.gaps
    linked = fast & fast[follower] & ~choice.parted & has_gap
    opens = np.flatnonzero(work.is_first_use)
    after_link = np.append(False, linked[:-1])  # whether the use before is linked to this one, round the ring
    after_link[opens] = linked[np.append(opens[1:], len(unit)) - 1]
    counts = np.diff(work.first_use)
    whole = np.flatnonzero((np.bincount(unit, linked, len(work.units)) == counts) & (counts > 0))
    return np.flatnonzero(fast & ~after_link), np.flatnonzero(fast & ~linked), whole


def episodes_of(work: Workload, choice: Choice) -> Episodes:
    """The episodes of a choice for every unit."""
    length, units = work.n_layers, work.units
    unit, layer = work.use_unit, work.use_layer
    if not len(unit):
        none, flags = np.zeros(0, np.int64), np.zeros(0, bool)
        return Episodes(none, none, none, none, none, flags, flags, np.zeros(0))
    _, _, has_gap = work.gaps
    heads, tails, whole = _stretches(work, choice)
    owner, opening = unit[heads], work.is_first_use[heads]
    first, last = work.first_use[owner], work.first_use[owner + 1] - 1
    at = np.searchsorted(tails, heads)
    tail = tails[np.minimum(at, len(tails) - 1)] if len(tails) else np.zeros(0, np.int64)
    round_ring = (at >= len(tails)) | (unit[tail] != owner) if len(heads) else np.zeros(0, bool)
    tail = np.where(round_ring, tails[np.searchsorted(tails, first)] if len(heads) else tail, tail)
    total = work.ns_before
    value = total[tail + 1] - total[heads]
    value += np.where(round_ring, total[last + 1] - total[first], 0.0)
    is_born, dies = opening & ~units.persistent[owner], ~has_gap[tail]
    before, shift = np.where(opening, last, heads - 1), np.where(opening, length, 0)
    turn = np.where(round_ring, length, 0)
    zero, full = np.zeros(len(whole), np.int64), np.full(len(whole), length)
    never = np.zeros(len(whole), bool)
    return Episodes(
        unit=np.append(owner, whole),
        held_from=np.append(np.where(is_born, layer[heads], choice.arrive[before] - shift), zero),
        begin=np.append(np.where(is_born, layer[heads], choice.arrived[before] - shift), zero),
        end=np.append(np.where(dies, units.stop[owner], choice.leave[tail] + turn), full),
        held_until=np.append(np.where(dies, units.stop[owner], choice.left[tail] + turn), full),
        promote=np.append(~is_born, never),
        demote=np.append(~dies, never),
        value_ns=np.append(np.rint(value), np.bincount(unit, work.use_ns, len(units))[whole]),
    )


def held_layers(work: Workload, episodes: Episodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unrolled layers [start, stop) in which each episode holds room in fast memory. Where bytes are exchanged
    (`Workload.exchanges`) that is not before they have come."""
    start = np.where(episodes.promote, episodes.begin, episodes.held_from) if work.exchanges else episodes.held_from
    return start, episodes.held_until


def room_bytes(work: Workload, episodes: Episodes) -> NDArray[np.int64]:
    """(L,) bytes that episodes hold in fast memory."""
    row, nbytes = np.zeros(len(episodes), np.int64), work.units.nbytes[episodes.unit]
    return np.asarray(ring_sum(row, *held_layers(work, episodes), nbytes, 1, work.n_layers)[0])
