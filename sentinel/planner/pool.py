"""The blocks of a pool: what time-shares addresses and never migrates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Block
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.packing import pack_slots

_ROWS = 1024
"""A layered pool is cut into at most so many page ranges."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Packed tensors: `offsets` of `tensors` within `extent` bytes, of which the first `cap` are in fast memory.

    A tensor that lies across the cap is in both tiers, for good.
    """

    tensors: NDArray[np.int64]
    offsets: NDArray[np.int64]
    extent: int
    cap: int

    def slow_share(self, profile: Profile) -> NDArray[np.float64]:
        """Of each tensor the share of its bytes above the cap."""
        nbytes = profile.tensors["nbytes"][self.tensors]
        return np.asarray(np.clip((self.offsets + nbytes - self.cap) / nbytes, 0.0, 1.0), np.float64)


def make_pool(profile: Profile, tensors: NDArray[np.int64], cap: int | None = None) -> Pool:
    """Pack tensors by the events of their birth and death. `cap`: whole pages; None: all is in fast memory."""
    t = profile.tensors[tensors]
    offsets, extent = pack_slots(t["nbytes"], t["born_event"], t["died_event"], profile.n_events)
    return Pool(tensors, offsets, extent, extent if cap is None else min(cap, extent))


def fixed_block(pool: Pool, base: int, length: int, tier: int, name: str) -> Block:
    """One block that is resident all step."""
    return Block(base, pool.extent, 0, length, tier, tuple(pool.tensors.tolist()), name, fixed=True)


def layered_blocks(pool: Pool, profile: Profile, base: int, tier: int, name: str, rest_tier: int = 1) -> list[Block]:
    """Blocks that hold each page range of a pool only in the layers in which a tenant is alive.

    Rows of pages that are occupied in the same layers become one block a run of layers, so a pool that every
    layer fills is one block. What is above the cap is in `rest_tier`.
    """
    low, high, used = _rows(pool, profile)
    above = _above(pool, profile, base, rest_tier, name)
    if not len(low):
        return above
    run, row_of, begin, width = _runs(used)
    t = profile.tensors[pool.tensors]
    first = np.searchsorted(high, pool.offsets, side="right")
    count = np.maximum(np.searchsorted(low, pool.offsets + t["nbytes"], side="left") - first, 0)
    tenant = np.repeat(np.arange(len(t)), count)
    row = np.arange(len(tenant)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    home = run[row, t["start"][tenant]]  # all of a tenant's life is in one run
    order = np.lexsort((tenant, home))
    cuts = np.searchsorted(home[order], np.arange(len(begin) + 1)).tolist()
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
    low, high, used = _rows(pool, profile)
    return (high - low) @ used if len(low) else np.zeros(profile.n_layers, np.int64)


def _rows(pool: Pool, profile: Profile) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """First byte, one past the last, and (rows, L) occupied of each page range; neighbours of one occupancy merged."""
    if pool.cap == 0:
        none = np.zeros(0, np.int64)
        return none, none, np.zeros((0, profile.n_layers), bool)
    grain = max(-(-pool.cap // (PAGE_BYTES * _ROWS)) * PAGE_BYTES, PAGE_BYTES)
    t = profile.tensors[pool.tensors]
    start, stop = t["start"].astype(np.int64), t["stop"].astype(np.int64)
    used = _occupied(pool, grain, start, stop, t["nbytes"], profile.n_layers)
    heads = np.flatnonzero(np.append(True, (used[1:] != used[:-1]).any(axis=1)))
    tails = np.append(heads[1:], len(used))
    some = used[heads].any(axis=1)
    heads, tails = heads[some], tails[some]
    return heads * grain, np.minimum(tails * grain, pool.cap), used[heads]


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
    grid = np.zeros((rows + 1, length + 1), np.int32)
    low, high = np.minimum(pool.offsets // grain, rows), np.minimum(-(-(pool.offsets + nbytes) // grain), rows)
    for begin, end in ((start, np.minimum(stop, length)), (np.zeros_like(start), np.maximum(stop - length, 0))):
        for row, sign in ((low, 1), (high, -1)):
            np.add.at(grid, (row, begin), sign)
            np.add.at(grid, (row, end), -sign)
    return grid.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0


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
