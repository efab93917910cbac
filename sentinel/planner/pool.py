"""The reserved pool: tensors that share addresses by events and never migrate.

`reserve` chooses the short-lived tensors that are in it; the rest turns a packed pool into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Block
from sentinel.core.profile import Profile
from sentinel.core.ragged import ranges
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.packing import pack_slots
from sentinel.planner.workload import Workload, peak_bytes, short_peaks

_ROWS = 1024
"""A layered pool is cut into at most 1,024 page ranges."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Packed tensors: `offsets` of `tensors` within `extent` bytes, of which the first `cap` are in fast memory.

    A tensor that lies across the cap is in both tiers, for good.
    """

    tensors: NDArray[np.int64]
    offsets: NDArray[np.int64]
    extent: int
    cap: int
    profile: Profile

    @cached_property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """First byte, one past the last, and (rows, L) occupied of each page range below the cap; neighbours that are
        occupied in the same layers are one."""
        if self.cap == 0:
            none = np.zeros(0, np.int64)
            return none, none, np.zeros((0, self.profile.n_layers), bool)
        grain = max(-(-self.cap // (PAGE_BYTES * _ROWS)) * PAGE_BYTES, PAGE_BYTES)
        t = self.profile.tensors[self.tensors]
        start, stop = t["start"].astype(np.int64), t["stop"].astype(np.int64)
        used = _occupied(self, grain, start, stop, t["nbytes"], self.profile.n_layers)
        heads = np.flatnonzero(np.append(True, (used[1:] != used[:-1]).any(axis=1)))
        tails = np.append(heads[1:], len(used))
        some = used[heads].any(axis=1)
        heads, tails = heads[some], tails[some]
        return heads * grain, np.minimum(tails * grain, self.cap), used[heads]

    def slow_share(self, profile: Profile) -> NDArray[np.float64]:
        """Of each tensor the share of its bytes above the cap."""
        nbytes = profile.tensors["nbytes"][self.tensors]
        return np.asarray(np.clip((self.offsets + nbytes - self.cap) / nbytes, 0.0, 1.0), np.float64)


def make_pool(profile: Profile, tensors: NDArray[np.int64], cap: int | None = None) -> Pool:
    """Pack tensors by the events of their birth and death. `cap`: whole pages; None: all is in fast memory."""
    t = profile.tensors[tensors]
    offsets, extent = pack_slots(t["nbytes"], t["born_event"], t["died_event"], profile.n_events)
    return Pool(tensors, offsets, extent, extent if cap is None else min(cap, extent), profile)


def fixed_block(pool: Pool, base: int, length: int, tier: int, name: str) -> Block:
    """One block that is resident all step."""
    return Block(base, pool.extent, 0, length, tier, tuple(pool.tensors.tolist()), name, fixed=True)


def layered_blocks(pool: Pool, profile: Profile, base: int, tier: int, name: str, rest_tier: int = 1) -> list[Block]:
    """Blocks that hold each page range of a pool only in the layers in which a tenant is alive.

    Rows of pages that are occupied in the same layers become one block a run of layers, so a pool that every
    layer fills is one block. What is above the cap is in `rest_tier`.
    """
    low, high, used = pool.rows
    above = _above(pool, profile, base, rest_tier, name)
    if not len(low):
        return above
    run, row_of, begin, width = _runs(used)
    t = profile.tensors[pool.tensors]
    first = np.searchsorted(high, pool.offsets, side="right")
    count = np.maximum(np.searchsorted(low, pool.offsets + t["nbytes"], side="left") - first, 0)
    tenant = np.repeat(np.arange(len(t)), count)
    row = ranges(first, count)
    run_of = run[row, t["start"][tenant]]  # all of a tenant's life is in one run
    order = np.lexsort((tenant, run_of))
    cuts = np.searchsorted(run_of[order], np.arange(len(begin) + 1)).tolist()
    members = pool.tensors[tenant[order]].tolist()
    lows, highs = low[row_of].tolist(), high[row_of].tolist()
    return [
        Block(base + a, b - a, k, k + n, tier, tuple(members[cuts[i] : cuts[i + 1]]), f"{name}@{k}")
        for i, (a, b, k, n) in enumerate(zip(lows, highs, begin.tolist(), width.tolist(), strict=True))
    ] + above


def _above(pool: Pool, profile: Profile, base: int, tier: int, name: str) -> list[Block]:
    """What lies above the cap: one block in the slower tier."""
    if pool.extent <= pool.cap:
        return []
    inside = pool.tensors[pool.offsets + profile.tensors["nbytes"][pool.tensors] > pool.cap]
    nbytes, length = pool.extent - pool.cap, profile.n_layers
    return [Block(base + pool.cap, nbytes, 0, length, tier, tuple(inside.tolist()), f"{name}:rest", fixed=True)]


def held_bytes(pool: Pool, profile: Profile) -> NDArray[np.int64]:
    """(L,) bytes that `layered_blocks` hold."""
    low, high, used = pool.rows
    return (high - low) @ used if len(low) else np.zeros(profile.n_layers, np.int64)


def _occupied(
    pool: Pool,
    grain: int,
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    length: int,
) -> NDArray[np.bool_]:
    """(rows, L) whether a tenant of a row of pages is alive in a layer."""
    rows = -(-pool.cap // grain)
    grid = np.zeros((rows + 1) * (length + 1), np.int32)
    low, high = np.minimum(pool.offsets // grain, rows), np.minimum(-(-(pool.offsets + nbytes) // grain), rows)
    for begin, end in ((start, np.minimum(stop, length)), (np.zeros_like(start), np.maximum(stop - length, 0))):
        for row, sign in ((low, 1), (high, -1)):
            np.add.at(grid, row * (length + 1) + begin, np.int32(sign))
            np.add.at(grid, row * (length + 1) + end, np.int32(-sign))
    table = grid.reshape(rows + 1, length + 1)
    for axis in (1, 0):  # in place: new tables of a million numbers take three times as long
        np.add.accumulate(table, axis=axis, out=table)
    return np.asarray(table[:-1, :-1] > 0)


def _runs(
    used: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Runs of used layers of each row, round the ring: (rows, L) run at each place; of each run row, begin, width."""
    begins = used & ~np.roll(used, 1, axis=1)
    begins[used.all(axis=1), 0] = True
    row, begin = np.nonzero(begins)
    number = np.cumsum(begins.reshape(-1)).reshape(used.shape) - 1
    last_of_row = np.searchsorted(row, np.arange(len(used)), side="right") - 1
    ahead = np.cumsum(begins, axis=1) == 0  # before the row's first run begins: its last one goes on
    number = np.where(ahead, last_of_row[:, None], number)
    width = np.bincount(number[used], minlength=len(row))
    return number, row, begin, width


_ROUNDS = 6

_MOSTLY = 0.5


@dataclass(frozen=True, eq=False)
class Reserve:
    """`tier` of each short-lived tensor, the packed `pool` of what is in fast memory, the (L,) bytes it holds, and the
    units that are in it as well."""

    tier: NDArray[np.int64]
    pool: Pool
    held_bytes: NDArray[np.int64]
    pooled: NDArray[np.int64]


def reserve(
    work: Workload,
    budget: int,
    slow: NDArray[np.bool_] | None = None,
    others: NDArray[np.int64] | None = None,
) -> Reserve:
    """The reserve within `budget` bytes of fast memory; what packing puts above that is in slow memory.

    `slow`: (short,) tensors that are not to be in it whatever the room. `others`: units that are to be in it too,
    but for those of which most would lie above the budget.
    """
    units, tier = work.units, _chosen(work, budget, slow)
    pooled = np.zeros(len(units), bool)
    pooled[others if others is not None else []] = True
    pool = _packed(work, tier, pooled, budget)
    for _ in range(_ROUNDS):
        lost = pooled & (_slow_units(work, pool) > _MOSTLY)
        if not lost.any():
            break
        pooled &= ~lost
        pool = _packed(work, tier, pooled, budget)
    return Reserve(tier, pool, held_bytes(pool, work.profile), np.flatnonzero(pooled))


def _packed(work: Workload, tier: NDArray[np.int64], pooled: NDArray[np.bool_], budget: int) -> Pool:
    """The pool of the short-lived tensors of tier 0 and the units that are `pooled`."""
    units = work.units
    inside = units.tensors[pooled[units.unit_of[units.tensors]]]
    return make_pool(work.profile, np.append(units.short[tier == 0], inside), budget)


def _slow_units(work: Workload, pool: Pool) -> NDArray[np.float64]:
    """(units,) share of each unit's bytes that lies above the pool's cap."""
    units, nbytes = work.units, work.profile.tensors["nbytes"]
    mine = units.unit_of[pool.tensors] >= 0
    of, size = units.unit_of[pool.tensors[mine]], nbytes[pool.tensors[mine]]
    over = np.bincount(of, size * pool.slow_share(work.profile)[mine], len(units))
    return np.asarray(over / np.maximum(np.bincount(of, size, len(units)), 1))


def pool_ns(work: Workload, short: Reserve) -> NDArray[np.float64]:
    """(L,) extra time of short-lived tensors in slow memory, less what the units that stay in fast memory save."""
    slow = (short.tier > 0).astype(np.float64)
    place = np.full(len(work.profile.names), -1)
    place[work.units.short] = np.arange(len(slow))
    mine = place[short.pool.tensors] >= 0
    slow[place[short.pool.tensors[mine]]] = short.pool.slow_share(work.profile)[mine]
    layer = work.profile.tensors["start"][work.units.short]
    out = np.bincount(layer, work.short_ns * slow, work.n_layers)
    kept = np.zeros(len(work.units))
    kept[short.pooled] = 1.0 - _slow_units(work, short.pool)[short.pooled]
    saved = np.bincount(work.use_layer % work.n_layers, work.use_ns * kept[work.use_unit], work.n_layers)
    return np.asarray(out - saved, np.float64)


def _chosen(work: Workload, budget: int, slow: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """(short,) tier of each short-lived tensor, by live bytes.

    All in fast if the fullest layer fits. Else, in each layer that does not fit, the tensors with the least
    to gain a byte go to slow memory until it does.
    """
    units, t = work.units, work.profile.tensors
    tier = np.zeros(len(units.short), np.int64)
    peaks = work.short_bytes
    if slow is not None:
        tier[slow] = 1
        peaks = short_peaks(work.profile, units.short[~slow])
    if peaks.max(initial=0) <= budget:
        return tier
    nbytes = t["nbytes"][units.short].astype(np.int64)
    layer = t["start"][units.short]
    density = work.short_ns / nbytes
    for full in np.flatnonzero(peaks > budget).tolist():
        rows = np.flatnonzero((layer == full) & (tier == 0))
        rows = rows[np.argsort(density[rows], kind="stable")]
        low, high = 0, len(rows)  # the least number that must go, by bisection: the peak falls with each
        while low < high:
            middle = (low + high) // 2
            if peak_bytes(work.profile, units.short[rows[middle:]]) <= budget:
                high = middle
            else:
                low = middle + 1
        tier[rows[:low]] = 1
    return tier
