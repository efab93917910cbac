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
    """Packed tensors: `offsets` of `tensors` within `extent` bytes."""

    tensors: NDArray[np.int64]
    offsets: NDArray[np.int64]
    extent: int


def make_pool(profile: Profile, tensors: NDArray[np.int64]) -> Pool:
    """Pack tensors by the events of their birth and death."""
    t = profile.tensors[tensors]
    offsets, extent = pack_slots(t["nbytes"], t["born_event"], t["died_event"], profile.n_events)
    return Pool(tensors, offsets, extent)


def fixed_block(pool: Pool, base: int, length: int, tier: int, name: str) -> Block:
    """One block that is resident all step."""
    return Block(base, pool.extent, 0, length, tier, tuple(pool.tensors.tolist()), name, fixed=True)


def layered_blocks(pool: Pool, profile: Profile, base: int, tier: int, name: str) -> list[Block]:
    """Blocks that hold each page range of a pool only in the layers in which a tenant is alive.

    Rows of pages that are occupied in the same layers become one block a run of layers, so a pool that every
    layer fills is one block.
    """
    length = profile.n_layers
    t = profile.tensors[pool.tensors]
    start, stop, ends = t["start"], t["stop"], pool.offsets + t["nbytes"]
    blocks = []
    for low, high, used in _rows(pool, profile):
        here = np.flatnonzero((pool.offsets < high) & (ends > low))
        for begin, end in _runs(used):
            # round the ring: a tenant may have begun in the turn before, or go on into the next
            tenants = np.zeros(len(here), bool)
            for turn in (-length, 0, length):
                tenants |= (start[here] + turn < end) & (stop[here] + turn > begin)
            members = tuple(pool.tensors[here[tenants]].tolist())
            blocks.append(Block(base + low, high - low, begin, end, tier, members, f"{name}@{begin}"))
    return blocks


def held_bytes(pool: Pool, profile: Profile) -> NDArray[np.int64]:
    """(L,) bytes that `layered_blocks` hold."""
    out = np.zeros(profile.n_layers, np.int64)
    for low, high, used in _rows(pool, profile):
        out[used] += high - low
    return out


def _rows(pool: Pool, profile: Profile) -> list[tuple[int, int, NDArray[np.bool_]]]:
    """(first byte, one past the last, (L,) occupied) of each page range, neighbours with one occupancy merged."""
    if pool.extent == 0:
        return []
    grain = max(-(-pool.extent // (PAGE_BYTES * _ROWS)) * PAGE_BYTES, PAGE_BYTES)
    t = profile.tensors[pool.tensors]
    used = _occupied(
        pool, grain, t["start"].astype(np.int64), t["stop"].astype(np.int64), t["nbytes"], profile.n_layers
    )
    heads = np.flatnonzero(np.append(True, (used[1:] != used[:-1]).any(axis=1)))
    tails = np.append(heads[1:], len(used))
    rows = zip(heads.tolist(), tails.tolist(), strict=True)
    return [(h * grain, min(t * grain, pool.extent), used[h]) for h, t in rows if used[h].any()]


def _occupied(
    pool: Pool,
    grain: int,
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    length: int,
) -> NDArray[np.bool_]:
    """(rows, L) whether a tenant of a row of pages is alive in a layer."""
    grid = np.zeros((-(-pool.extent // grain) + 1, length + 1), np.int32)
    low, high = pool.offsets // grain, -(-(pool.offsets + nbytes) // grain)
    for begin, end in ((start, np.minimum(stop, length)), (np.zeros_like(start), np.maximum(stop - length, 0))):
        for row, sign in ((low, 1), (high, -1)):
            np.add.at(grid, (row, begin), sign)
            np.add.at(grid, (row, end), -sign)
    return grid.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0


def _runs(used: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs of layers [start, stop) of a ring, unrolled at its seam, at most one turn each."""
    length = len(used)
    if used.all():
        return [(0, length)]
    edges = np.flatnonzero(np.diff(used.astype(np.int8), prepend=np.int8(0), append=np.int8(0)))
    runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    if len(runs) > 1 and runs[0][0] == 0 and runs[-1][1] == length:
        begin, _ = runs.pop()
        runs[0] = (begin, runs[0][1] + length)
    return runs
