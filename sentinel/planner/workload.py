"""Profile and machine as the planner's numbers: units, their uses, and what slow memory costs.

A unit is one large tensor or a co-allocation group of small ones. Long-lived tensors of one layer set are grouped,
hottest first, and never share a page with another set (paper, section IV). Short-lived ones are not units: they go to
the reserved pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns, lost_ns_per_byte, slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import ring_sum
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES, page_ceil
from sentinel.planner.packing import SMALL_ALIGN, slot_bytes

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
    short = short_tensors(profile)
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


def short_tensors(profile: Profile) -> NDArray[np.int64]:
    """Indexes of the managed tensors that live at most one layer: they are in no unit."""
    return np.flatnonzero(profile.tensors["managed"] & profile.short_lived())


def _layer_sets(profile: Profile) -> NDArray[np.uint64]:
    """(n,) a fingerprint of the exact set of layers in which each tensor is used (same set, same number)."""
    a = profile.accesses
    hashed = hash64(a["layer"].astype(np.uint64) + np.uint64(1))
    out = np.zeros(len(profile.names), np.uint64)
    np.add.at(out, a["extent"], hashed)
    return out


def hash64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
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
    np.add.at(hot, a["extent"], np.maximum(a["reads"], 0) + np.maximum(a["writes"], 0))
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


@dataclass(frozen=True, eq=False)
class Workload:
    """L layers, U units, m uses. Uses are sorted by (unit, layers since the unit's birth), one row a pair.

    The birth of a transient counts as a use, of no value if it is not `touched` (m,) then.
    `use_unit, use_layer`: (m,), `use_layer` unrolled in [start, start + L). `use_ns`: extra time if the use
    is served by the slow tier. `first_use[u]:first_use[u + 1]` are the uses of unit u. `compute_ns`,
    `traffic_ns`: (L,) of a layer, all in fast. `short_bytes`: (L,) peak of the short-lived tensors of a layer.
    `pool_ns`: (L,) extra time of those that are in slow memory. `slow_tier`: (U,) the slower tier that serves each unit
    where the fast one does not. `moves_of`: (U,) migrations that moving each unit takes, at least. `exchanges`: what
    moves holds room on one side only, for the exchange bound; no plan does that.
    """

    profile: Profile
    machine: Machine
    units: Units
    use_unit: NDArray[np.int64]
    use_layer: NDArray[np.int64]
    use_ns: NDArray[np.float64]
    touched: NDArray[np.bool_]
    first_use: NDArray[np.int64]
    compute_ns: NDArray[np.float64]
    traffic_ns: NDArray[np.float64]
    short_bytes: NDArray[np.int64]
    short_ns: NDArray[np.float64]
    pool_ns: NDArray[np.float64]
    footprint_bytes: int
    slow_tier: NDArray[np.int64]
    moves_of: NDArray[np.int64]
    exchanges: bool = False

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return self.profile.n_layers

    @property
    def budget_bytes(self) -> int:
        """Fast memory, in whole pages."""
        return self.machine.fast.capacity_bytes // PAGE_BYTES * PAGE_BYTES

    @cached_property
    def fetched(self) -> NDArray[np.bool_]:
        """(U,) whether a unit is used, and its slow tier cannot be used in place: fast memory serves all its uses."""
        in_place = np.array([tier.addressable for tier in self.machine.tiers])
        used = np.bincount(self.use_unit, self.touched, len(self.units)) > 0
        return np.asarray(used & ~in_place[self.slow_tier], bool)

    @cached_property
    def keeps_shorts(self) -> NDArray[np.bool_]:
        """(L,) whether all short-lived tensors of a layer have to be in fast memory: everywhere if no slower tier is
        used in place, and beside one that is not wherever they have room with what is fetched around them."""
        in_place = [self.machine.tiers[tier].addressable for tier in self.machine.slower]
        if any(in_place) and not self.fetched.any():
            return np.zeros(self.n_layers, bool)
        return np.asarray(self.short_bytes + self.fetched_around <= self.budget_bytes) | (not any(in_place))

    @cached_property
    def fetched_around(self) -> NDArray[np.int64]:
        """(L,) bytes of fetched units that a layer, the one before it or the one behind it uses."""
        length, mine = self.n_layers, np.flatnonzero(self.fetched[self.use_unit])
        unit, layer = np.tile(self.use_unit[mine], 3), (self.use_layer[mine] + np.array([[-1], [0], [1]])) % length
        pairs = np.unique(unit * length + layer.reshape(-1))
        return np.bincount(pairs % length, self.units.nbytes[pairs // length], length).astype(np.int64)

    @cached_property
    def is_first_use(self) -> NDArray[np.bool_]:
        """(m,) whether each use is its unit's first."""
        return np.asarray(np.diff(self.use_unit, prepend=-1) != 0)

    @cached_property
    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Per use: (row of its unit's next use, the unrolled layer of that, whether there is one). Persistent units go
        round."""
        row = np.arange(len(self.use_unit))
        is_last = np.diff(self.use_unit, append=-1) != 0
        wraps = is_last & self.units.persistent[self.use_unit]
        follower = np.where(is_last, self.first_use[self.use_unit], row + 1)
        return follower, self.use_layer[follower] + np.where(wraps, self.n_layers, 0), ~is_last | wraps

    @cached_property
    def layer_of_use(self) -> NDArray[np.int64]:
        """(m,) the layer of each use, on the ring."""
        return self.use_layer % self.n_layers

    @cached_property
    def ns_before(self) -> NDArray[np.float64]:
        """(m + 1,) sum of `use_ns` of all uses before each row."""
        return np.append(0.0, np.cumsum(self.use_ns))

    @cached_property
    def move_slowdown(self) -> NDArray[np.float64]:
        """(2, U) times as long as at `per_s` that promoting and demoting a byte of each unit takes."""
        links = [self._per_s(tier) for tier in range(1, len(self.machine.tiers))]
        return np.asarray((np.array(self.per_s) / np.array(links)).T[:, self.slow_tier - 1], np.float64)

    @cached_property
    def lost_ns_per_byte(self) -> NDArray[np.float64]:
        """(2, U) what promoting and demoting a byte of each unit takes from compute while it moves."""
        return lost_ns_per_byte(self.machine)[:, self.slow_tier]

    @cached_property
    def lost_ns_of_moves(self) -> NDArray[np.float64]:
        """(2, U) what the migrations that promote and demote each unit take from compute, besides its bytes."""
        tiers = range(1, len(self.machine.tiers))
        each = np.array([[self.machine.link(*way).lost_ns_per_move for way in ((t, 0), (0, t))] for t in tiers])
        return np.asarray(each.T[:, self.slow_tier - 1] * self.moves_of, np.float64)

    @property
    def per_s(self) -> tuple[float, float]:
        """Bytes a second that are promoted and demoted over the links of the first slow tier in use."""
        return self._per_s(int(self.slow_tier.min(initial=len(self.machine.tiers) - 1)))

    def _per_s(self, tier: int) -> tuple[float, float]:
        up, down = self.machine.link(tier, 0), self.machine.link(0, tier)
        return float(up.bandwidth_bytes_per_s), float(down.bandwidth_bytes_per_s)


@dataclass(frozen=True, eq=False)
class SlowTierOf:
    """The slower tier of each unit, and of each short-lived tensor: (U,) and (short,), by the order of `Units`."""

    unit: NDArray[np.int64]
    short: NDArray[np.int64]


def make_workload(
    profile: Profile, machine: Machine, footprint_bytes: int, slow: int = 1, slow_tiers: SlowTierOf | None = None
) -> Workload:
    """The Workload of a profile on a machine whose slow tier is `slow`, or where everything has its own."""
    units = make_units(profile)
    slow_tiers = slow_tiers or SlowTierOf(
        np.full(len(units), slow, np.int64), np.full(len(units.short), slow, np.int64)
    )
    a = profile.accesses
    extra = _extra_ns(profile, machine, units, slow_tiers)
    unit = units.unit_of[a["extent"]]
    known = unit >= 0
    start = units.start[unit[known]]
    layer = a["layer"][known].astype(np.int64)
    layer = np.where(layer < start, layer + profile.n_layers, layer)
    births = np.flatnonzero(~units.persistent)
    unit_all, layer_all = np.append(unit[known], births), np.append(layer, units.start[births])
    key, place = np.unique(unit_all * (2 * profile.n_layers) + layer_all, return_inverse=True)
    use_ns = np.bincount(place, np.append(extra[known], np.zeros(len(births))), len(key)).astype(np.float64)
    use_unit = key // (2 * profile.n_layers)
    touched = np.bincount(place[: int(known.sum())], minlength=len(key)) > 0
    compute, traffic = base_ns(profile, machine)
    short_ns = np.zeros(len(profile.names))
    np.add.at(short_ns, a["extent"], extra)
    return Workload(
        profile=profile,
        machine=machine,
        units=units,
        use_unit=use_unit,
        use_layer=key % (2 * profile.n_layers),
        use_ns=use_ns,
        touched=touched,
        first_use=np.searchsorted(use_unit, np.arange(len(units) + 1)),
        compute_ns=compute,
        traffic_ns=traffic,
        short_bytes=short_peaks(profile, units.short),
        short_ns=short_ns[units.short],
        pool_ns=np.zeros(profile.n_layers),
        footprint_bytes=footprint_bytes,
        slow_tier=slow_tiers.unit,
        moves_of=np.ones(len(units), np.int64),
    )


def _extra_ns(profile: Profile, machine: Machine, units: Units, slow_tiers: SlowTierOf) -> NDArray[np.float64]:
    """(m,) per row of `profile.accesses`: extra time if the slow tier of its tensor serves it."""
    tier_of = np.ones(len(profile.names), np.int64)
    tier_of[units.tensors] = slow_tiers.unit[units.unit_of[units.tensors]]
    tier_of[units.short] = slow_tiers.short
    tier_of = tier_of[profile.accesses["extent"]]
    out = np.zeros(len(tier_of))
    for tier in np.unique(tier_of).tolist():
        out = np.where(tier_of == tier, slow_extra_ns(profile, machine, tier), out)
    return out


def short_peaks(profile: Profile, tensors: NDArray[np.int64]) -> NDArray[np.int64]:
    """(L,) most bytes of these short-lived tensors that are alive at one time of each layer, in pages."""
    t = profile.tensors[tensors]
    out = np.zeros(profile.n_layers, np.int64)
    if not len(t):
        return out
    row = np.zeros(len(t), np.int64)
    alive = ring_sum(row, t["born_event"], t["died_event"], slot_bytes(t["nbytes"]), 1, profile.n_events)[0]
    np.maximum.at(out, t["start"], alive[t["born_event"]])  # a peak is reached at a birth
    return -(-out // PAGE_BYTES) * PAGE_BYTES


def peak_bytes(profile: Profile, tensors: NDArray[np.int64]) -> int:
    """Most bytes of these short-lived tensors, all of one layer, that are alive at one time, in pages: what
    `short_peaks` says of that layer, but without a sum for every event of the step."""
    t = profile.tensors[tensors]
    sizes = slot_bytes(t["nbytes"])
    event, change = np.append(t["born_event"], t["died_event"]), np.append(sizes, -sizes)
    order = np.lexsort((change, event))
    return page_ceil(int(change[order].cumsum().max(initial=0)))
