"""The window bound of plans on a machine with a tier whose bytes cannot be used in place.

What a layer uses is in memory as the layer begins, and what is born in it and outlives it as it ends. So a layer is
two operators of window_bound: its begin, which takes its time, and its end, which takes none. Memory is the fast tier
and all others that are used in place; reads and writes are promotions from, and demotions to, those that are not.

Relaxed, beside what window_bound relaxes: tensors are cut into units, of which parts are left out; what is born and
dies within a layer is left out; bytes that nobody has changed need not be written to leave.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns
from sentinel.core.disk_rates import DiskRates
from sentinel.core.extents import extents_as_tensors
from sentinel.core.granule_uses import BORN, DIED, READS, WRITES, GranuleUses
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.units import HUGE_PAGE_BYTES, PAGE_BYTES
from sentinel.planner.window_bound import window_bound

_MOST_USES = 1 << 19
"""Units are as small as this allows, but whole pages."""


def needs_windows(machine: Machine) -> bool:
    """Whether a tier of `machine` cannot be used in place."""
    return not all(tier.addressable for tier in machine.tiers)


def profile_window_bound_ns(profile: Profile, machine: Machine) -> int:
    """No plan's step is shorter than so many ns; 0 where all tiers are used in place."""
    if not needs_windows(machine):
        return 0
    profile = extents_as_tensors(profile)
    used = profile.tensors["nbytes"][profile.accesses["extent"]]
    unit_bytes = max(-(-int(used.sum()) // (_MOST_USES * PAGE_BYTES)), 1) * PAGE_BYTES
    uses = _uses(profile, machine, unit_bytes)
    memory = sum(tier.capacity_bytes for tier in machine.tiers if tier.addressable)
    frames = max(-(-memory // unit_bytes), 1)
    away = [index for index, tier in enumerate(machine.tiers) if not tier.addressable]
    read, write = (
        sum(machine.link(*ends).bandwidth_bytes_per_s for ends in pairs) * HUGE_PAGE_BYTES / unit_bytes
        for pairs in ([(tier, machine.hub) for tier in away], [(machine.hub, tier) for tier in away])
    )
    apart = (DiskRates(read, np.inf), DiskRates(np.inf, write))  # as if the other direction took no time
    rates = apart if machine.full_duplex else (DiskRates(read, write),)
    return max(window_bound(uses, frames, each).step_ns for each in rates)


def _uses(profile: Profile, machine: Machine, unit_bytes: int) -> GranuleUses:
    """Operator 2k is the begin of layer k, operator 2k + 1 its end."""
    t, a, length = profile.tensors, profile.accesses, profile.n_layers
    compute, traffic = base_ns(profile, machine)
    layer_ns = compute + traffic if machine.flops_per_s is None else np.maximum(compute, traffic)
    compute_ns = np.zeros(2 * length, np.int64)
    compute_ns[::2] = np.floor(layer_ns)
    units = np.where(t["managed"], t["nbytes"] // unit_bytes, 0)
    lasting = t["persistent"]
    outlives = ~lasting & (t["stop"] - t["start"] > 1)
    tensor, layer = a["extent"].astype(np.int64), a["layer"].astype(np.int64)
    kind = READS * (a["read_bytes"] > 0) + WRITES * (a["written_bytes"] > 0)
    born = ~lasting[tensor] & (layer == t["start"][tensor])
    later = ~born & (kind > 0) & (lasting | outlives)[tensor]
    made = born & (kind > 0) & outlives[tensor]
    those = np.flatnonzero(outlives)
    tensors = np.concatenate([tensor[later], tensor[made], those, those])
    operators = np.concatenate(
        [2 * layer[later], 2 * layer[made] + 1, 2 * t["start"][those] + 1, 2 * ((t["stop"][those] - 1) % length)]
    )
    kinds = np.concatenate(
        [kind[later], np.full(made.sum(), WRITES), np.full(len(those), BORN), np.full(len(those), DIED)]
    )
    return _of_units(compute_ns, tensors, operators, kinds, units)


def _of_units(
    compute_ns: NDArray[np.int64],
    tensors: NDArray[np.int64],
    operators: NDArray[np.int64],
    kinds: NDArray[np.int64],
    units: NDArray[np.int64],
) -> GranuleUses:
    """The uses of each tensor's `units`; several kinds of one tensor in one operator become one."""
    key, which = np.unique(operators * len(units) + tensors, return_inverse=True)
    kind = np.zeros(len(key), np.uint8)
    np.bitwise_or.at(kind, which, kinds.astype(np.uint8))
    operator, tensor = key // len(units), key % len(units)
    count = units[tensor]
    base = np.cumsum(units) - units
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    per_operator = np.bincount(operator, count, len(compute_ns)).astype(np.int64)
    return GranuleUses(
        compute_ns,
        np.concatenate([np.zeros(1, np.int64), np.cumsum(per_operator)]),
        (np.repeat(base[tensor], count) + within).astype(np.int32),
        np.repeat(kind, count),
    )
