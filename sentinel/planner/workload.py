"""Profile and machine as the numbers a planner thinks in. Computed once a planning, shared by all candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns, slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import ring_sum
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.packing import SMALL_ALIGN
from sentinel.planner.units import Units, make_units


@dataclass(frozen=True, eq=False)
class Workload:
    """L layers, U units, m uses. Uses are sorted by (unit, layers since the unit's birth), one row a pair.

    The birth of a transient counts as a use, of no value if it is not touched then.
    `use_unit, use_layer`: (m,), `use_layer` unrolled in [start, start + L). `use_ns`: extra time if the use
    is served by the slow tier. `first_use[u]:first_use[u + 1]` are the uses of unit u. `compute_ns`,
    `traffic_ns`: (L,) of a layer, all in fast. `short_bytes`: (L,) peak of the short-lived tensors of a layer.
    `pool_ns`: (L,) extra time of those that are in slow memory. `home`: (U,) the slower tier that serves each unit
    where the fast one does not.
    """

    profile: Profile
    machine: Machine
    units: Units
    use_unit: NDArray[np.int64]
    use_layer: NDArray[np.int64]
    use_ns: NDArray[np.float64]
    first_use: NDArray[np.int64]
    compute_ns: NDArray[np.float64]
    traffic_ns: NDArray[np.float64]
    short_bytes: NDArray[np.int64]
    short_ns: NDArray[np.float64]
    pool_ns: NDArray[np.float64]
    footprint_bytes: int
    home: NDArray[np.int64]

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return self.profile.n_layers

    @property
    def budget_bytes(self) -> int:
        """Fast memory, in whole pages."""
        return self.machine.fast.capacity_bytes // PAGE_BYTES * PAGE_BYTES

    @cached_property
    def drag(self) -> NDArray[np.float64]:
        """(2, U) times as long as at `per_s` that promoting and demoting a byte of each unit takes."""
        links = [self._per_s(tier) for tier in range(1, len(self.machine.tiers))]
        return np.asarray((np.array(self.per_s) / np.array(links)).T[:, self.home - 1], np.float64)

    @property
    def per_s(self) -> tuple[float, float]:
        """Bytes a second that are promoted and demoted over the links of the first tier that is a home."""
        return self._per_s(int(self.home.min(initial=len(self.machine.tiers) - 1)))

    def _per_s(self, tier: int) -> tuple[float, float]:
        up, down = self.machine.link(tier, 0), self.machine.link(0, tier)
        return float(up.bandwidth_bytes_per_s), float(down.bandwidth_bytes_per_s)


@dataclass(frozen=True, eq=False)
class Homes:
    """The slower tier of each unit, and of each short-lived tensor: (U,) and (short,), by the order of `Units`."""

    unit: NDArray[np.int64]
    short: NDArray[np.int64]


def make_workload(
    profile: Profile, machine: Machine, footprint_bytes: int, slow: int = 1, homes: Homes | None = None
) -> Workload:
    """The Workload of a profile on a machine whose slow tier is `slow`, or where everything has its home."""
    units = make_units(profile)
    homes = homes or Homes(np.full(len(units), slow, np.int64), np.full(len(units.short), slow, np.int64))
    a = profile.accesses
    extra = _extra_ns(profile, machine, units, homes)
    unit = units.unit_of[a["tensor"]]
    known = unit >= 0
    start = units.start[unit[known]]
    layer = a["layer"][known].astype(np.int64)
    layer = np.where(layer < start, layer + profile.n_layers, layer)
    births = np.flatnonzero(~units.persistent)
    unit_all, layer_all = np.append(unit[known], births), np.append(layer, units.start[births])
    key, place = np.unique(unit_all * (2 * profile.n_layers) + layer_all, return_inverse=True)
    use_ns = np.bincount(place, np.append(extra[known], np.zeros(len(births))), len(key)).astype(np.float64)
    use_unit = key // (2 * profile.n_layers)
    compute, traffic = base_ns(profile, machine)
    short_ns = np.zeros(len(profile.names))
    np.add.at(short_ns, a["tensor"], extra)
    return Workload(
        profile=profile,
        machine=machine,
        units=units,
        use_unit=use_unit,
        use_layer=key % (2 * profile.n_layers),
        use_ns=use_ns,
        first_use=np.searchsorted(use_unit, np.arange(len(units) + 1)),
        compute_ns=compute,
        traffic_ns=traffic,
        short_bytes=short_peaks(profile, units.short),
        short_ns=short_ns[units.short],
        pool_ns=np.zeros(profile.n_layers),
        footprint_bytes=footprint_bytes,
        home=homes.unit,
    )


def _extra_ns(profile: Profile, machine: Machine, units: Units, homes: Homes) -> NDArray[np.float64]:
    """(m,) per row of `profile.accesses`: extra time if the home of its tensor serves it."""
    home = np.ones(len(profile.names), np.int64)
    home[units.tensors] = homes.unit[units.unit_of[units.tensors]]
    home[units.short] = homes.short
    home = home[profile.accesses["tensor"]]
    out = np.zeros(len(home))
    for tier in np.unique(home).tolist():
        out = np.where(home == tier, slow_extra_ns(profile, machine, tier), out)
    return out


def slot_bytes(nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) what tensors of so many bytes take in a pool."""
    align = np.where(nbytes < PAGE_BYTES, SMALL_ALIGN, PAGE_BYTES)
    return np.asarray(-(-nbytes // align) * align, np.int64)


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
