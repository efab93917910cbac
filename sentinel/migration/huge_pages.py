"""Which 2 MiB chunks of the placement arena may be huge pages: those whose bytes only ever move, and go, together.

A huge page moves between tiers as one, and to drop a part of it frees nothing. So a chunk may be one if the plan treats
it as one. It lies in one home, and one of two things holds:

* every block that ever lies in it contains all of it, so it moves with that block, and is dropped with it, or
* nothing of it ever moves, and in every layer all of it is in use or kept for the next tenant (see `keeping`).

Where plans take turns at the same addresses, that must hold for each of them that has anything there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.units import HUGE_PAGE_BYTES
from sentinel.migration.keeping import kept_pieces

MOST_RANGES = 4096
"""Each range may cost the kernel two mappings more, of which a process has 65,530: the longest ranges are chosen."""


class Placed(NamedTuple):
    """A plan, and the plan address at which the placement arena begins."""

    plan: Plan
    start: int


def huge_ranges(
    tables: Sequence[Placed], arena_bytes: int, *, chunk_bytes: int = HUGE_PAGE_BYTES
) -> list[tuple[int, int]]:
    """(offset, nbytes) of what may be huge pages in an arena of so many bytes that serves these plans: ascending, none
    touches another, all multiples of `chunk_bytes`."""
    count = max((-(-(plan.extent_bytes - start) // chunk_bytes) for plan, start in tables), default=0)
    count = min(max(count, 0), arena_bytes // chunk_bytes)
    chunks = _Chunks(count, chunk_bytes)
    may, used = np.ones(count, bool), np.zeros(count, bool)
    for table in tables:
        lets, uses = _judge(table, chunks)
        may &= lets
        used |= uses
    edges = np.flatnonzero(np.diff(may & used, prepend=False, append=False)).reshape(-1, 2)
    if len(edges) > MOST_RANGES:
        longest = np.argsort(edges[:, 0] - edges[:, 1], kind="stable")[:MOST_RANGES]
        edges = edges[np.sort(longest)]
    return [(low * chunk_bytes, (high - low) * chunk_bytes) for low, high in edges.tolist()]


def _judge(table: Placed, chunks: _Chunks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(chunks,) whether this plan lets each be a huge page; and whether it has a block there."""
    plan, start = table
    blocks = plan.blocks
    rows = [(b.offset - start, b.offset - start + b.nbytes, b.stop - b.start, b.tier, b.fixed) for b in blocks]
    low, high, layers, tier, fixed = np.array(rows, np.int64).reshape(-1, 5).T
    once = np.ones_like(low)
    used = chunks.sums(low, high, once) > 0
    moves = (tier > 0) & (fixed == 0)  # what is born slow comes to fast memory as the plan ends
    moves[list(plan.moves_by_block)] = True
    held = chunks.sums(low, high, layers) + _kept(table, chunks)
    stays = (held == chunks.nbytes * plan.n_layers) & (chunks.sums(low[moves], high[moves], once[moves]) == 0)
    return _one_home(table, chunks) & (~chunks.cut_by(low, high) | stays | ~used), used


def _kept(table: Placed, chunks: _Chunks) -> NDArray[np.int64]:
    """(chunks,) bytes that are kept between two tenants, times layers."""
    plan, start = table
    rows = [
        (
            piece.offset - start,
            piece.offset - start + piece.nbytes,
            plan.blocks[piece.heir].start - plan.blocks[dead].stop,
        )
        for dead, pieces in kept_pieces(plan).items()
        for piece in pieces
    ]
    low, high, gap = np.array(rows, np.int64).reshape(-1, 3).T
    return chunks.sums(low, high, gap % max(plan.n_layers, 1))


def _one_home(table: Placed, chunks: _Chunks) -> NDArray[np.bool_]:
    """(chunks,) whether all of each is born in one tier, or all of it in none."""
    rows = sorted((s.offset - table.start, s.offset - table.start + s.nbytes, s.tier) for s in table.plan.segments)
    low, high, tier = np.array(rows, np.int64).reshape(-1, 3).T
    inner = (low[1:] == high[:-1]) & (tier[1:] == tier[:-1])  # neighbours of one tier are one range
    return ~chunks.cut_by(low[np.append(True, ~inner)[: len(low)]], high[np.append(~inner, True)[: len(high)]])


class _Chunks:
    """`count` chunks of `nbytes` each, from address 0 on; ranges may go beyond them."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.nbytes = count, nbytes

    def cut_by(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(count,) whether one of the ranges [low, high) begins or ends inside the chunk."""
        found = np.zeros(self.count, bool)
        for edge in (low, high):
            inside = edge[(edge > 0) & (edge < self.count * self.nbytes) & (edge % self.nbytes != 0)]
            found[inside // self.nbytes] = True
        return found

    def sums(self, low: NDArray[np.int64], high: NDArray[np.int64], weight: NDArray[np.int64]) -> NDArray[np.int64]:
        """(count,) bytes that the ranges [low, high) have of each chunk, times their weights."""
        end = self.count * self.nbytes
        # bytes below an address, by chunk: whole chunks from the next on, and the part of its own
        rise, part = np.zeros(self.count + 2, np.int64), np.zeros(self.count + 2, np.int64)
        for edge, sign in ((low, 1), (high, -1)):
            at = np.clip(edge, 0, end)
            np.add.at(rise, at // self.nbytes, sign * weight)
            np.add.at(part, at // self.nbytes, sign * weight * (at % self.nbytes))
        return (rise.cumsum() * self.nbytes - part)[: self.count]
