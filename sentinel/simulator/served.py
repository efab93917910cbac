"""Which tier serves each access, and what that costs: a pure function of plan, profile and machine.

While a block is in flight it is served by the slower of its two tiers: its pages arrive one by one, at times
that no layer knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.extents import extent_shares
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.ragged import ranges

_MOST_USE = 0.95


def served_spans(plan: Plan) -> NDArray[np.int64]:
    """(rows, 4) of block, tier, start, stop: who serves a block in unrolled layers [start, stop)."""
    spans = plan.spans
    out = np.stack([spans[name].astype(np.int64) for name in ("block", "tier", "start", "stop")], axis=1)
    if not plan.migrations:
        return out
    held_from = spans["held_from"].astype(np.int64)
    after = np.flatnonzero(out[1:, 0] == out[:-1, 0]) + 1
    down = after[out[after, 1] > out[after - 1, 1]]
    out[down - 1, 3] = out[down, 2] = held_from[down]
    # the ring of a persistent block closes: its first span continues its last one
    heads = np.flatnonzero(np.diff(out[:, 0], prepend=-1) != 0)
    tails = np.append(heads[1:], len(out)) - 1
    ring = plan.block_columns.persistent[out[heads, 0]] & (tails > heads) & (out[heads, 1] > out[tails, 1])
    heads, tails = heads[ring], tails[ring]
    out[heads, 2] = held_from[heads]
    out[tails, 3] = held_from[heads] + plan.n_layers
    return out


def rows_of(
    profile: Profile, extent: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `profile.accesses` of each (extent, layers [start, stop) of the ring): (row, which query), flat."""
    length = profile.n_layers
    key = profile.accesses["extent"].astype(np.int64) * length + profile.accesses["layer"]
    width = np.minimum(np.maximum(stop - start, 0), length)
    begin = start % length
    end = begin + width
    pieces = [(begin, np.minimum(end, length)), (np.zeros_like(begin), np.maximum(end - length, 0))]
    rows, whose = [], []
    for low, high in pieces:
        first = np.searchsorted(key, extent * length + low)
        count = np.maximum(np.searchsorted(key, extent * length + high) - first, 0)
        rows.append(ranges(first, count))
        whose.append(np.repeat(np.arange(len(extent)), count))
    return np.concatenate(rows), np.concatenate(whose)


def tier_shares(plan: Plan, profile: Profile) -> NDArray[np.float64]:
    """(tiers, m) share of each access that each tier serves. What no block holds counts as fast."""
    spans = served_spans(plan)
    block, extent, share = extent_shares(plan, profile)
    slow = spans[spans[:, 1] > 0]
    first = np.searchsorted(block, slow[:, 0])
    count = np.searchsorted(block, slow[:, 0], side="right") - first
    span = np.repeat(np.arange(len(slow)), count)
    pair = ranges(first, count)
    row, query = rows_of(profile, extent[pair], slow[span, 2], slow[span, 3])
    shape = (len(plan.tier_names), len(profile.accesses))
    served = np.bincount(slow[span[query], 1] * shape[1] + row, share[pair[query]], shape[0] * shape[1])
    out = served.astype(np.float64).reshape(shape)
    out[0] = np.maximum(1.0 - out[1:].sum(axis=0), 0.0)
    return out


def layer_extra_ns(profile: Profile, machine: Machine, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """(L,) extra time of the accesses that slower tiers serve."""
    extra = np.zeros(profile.n_layers)
    for tier in machine.slower:
        if shares[tier].any():
            np.add.at(extra, profile.accesses["layer"], slow_extra_ns(profile, machine, tier) * shares[tier])
    return extra


def loaded_ns(
    profile: Profile, machine: Machine, shares: NDArray[np.float64], layer_ns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(L,) time that load adds to latencies: latency · a · u / (1 - u), u a tier's use of its bandwidth in the layer.

    Zero where no tier declares `loaded_latency_a`. The use is that of layers of `layer_ns`, at most 0.95.
    """
    a, length = profile.accesses, profile.n_layers
    out = np.zeros(length)
    for tier, spec in enumerate(machine.tiers):
        if not spec.loaded_latency_a:
            continue
        busy = a["read_bytes"] * (1e9 / spec.read_bytes_per_s) + a["written_bytes"] * (1e9 / spec.write_bytes_per_s)
        use = np.bincount(a["layer"], busy * shares[tier], length) / np.maximum(layer_ns, 1.0)
        use = np.minimum(use, _MOST_USE)
        waits = ((a["read_bytes"] > 0).astype(np.float64) + (a["written_bytes"] > 0)) * shares[tier]
        out += np.bincount(a["layer"], waits, length) * spec.latency_ns * spec.loaded_latency_a * use / (1.0 - use)
    return out


def touched_bytes(profile: Profile, shares: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(L,) bytes touched, and of these the bytes that the fast tier serves."""
    layer, nbytes = profile.accesses["layer"], profile.accesses["touched_bytes"].astype(np.float64)
    total = np.bincount(layer, nbytes, profile.n_layers)
    fast = np.bincount(layer, nbytes * shares[0], profile.n_layers)
    return np.rint(total).astype(np.int64), np.rint(fast).astype(np.int64)
