"""Pages of dead transient blocks that stay where they are, for the next tenant of their addresses is born there too.

To drop them would cost the thread that trains a fault a page, and the zeroing of it, in every step. They are in fast
memory meanwhile and count as held, so they are kept only while the plan leaves room for them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from sentinel.core.plan import Plan


class Piece(NamedTuple):
    """Plan addresses [offset, offset + nbytes), whose pages the block `heir` takes as they are."""

    offset: int
    nbytes: int
    heir: int


class _Gap(NamedTuple):
    """From the death of `dead` to the birth of its heir: `layers` of them, 0 where one follows on the other."""

    layers: int
    dead: int
    piece: Piece


def kept_pieces(plan: Plan) -> dict[int, tuple[Piece, ...]]:
    """Dead block -> what of it is kept: shortest gaps first, while the fast tier has room in each layer of the gap."""
    length = plan.n_layers
    held = plan.held_bytes[0].copy() if length else np.zeros(0, np.int64)
    kept: dict[int, list[Piece]] = {}
    for gap in sorted(_gaps(plan)):
        between = (plan.blocks[gap.dead].stop + np.arange(gap.layers)) % max(length, 1)
        if (held[between] + gap.piece.nbytes <= plan.capacity_bytes[0]).all():
            held[between] += gap.piece.nbytes
            kept.setdefault(gap.dead, []).append(gap.piece)
    return {block: tuple(sorted(pieces)) for block, pieces in kept.items()}


def without(offset: int, nbytes: int, pieces: tuple[Piece, ...]) -> list[tuple[int, int]]:
    """What is left of [offset, offset + nbytes) between `pieces`, which are sorted and lie in it: (offset, nbytes)."""
    left, at = [], offset
    for piece in pieces:
        left.append((at, piece.offset - at))
        at = piece.offset + piece.nbytes
    left.append((at, offset + nbytes - at))
    return [(start, size) for start, size in left if size]


def _gaps(plan: Plan) -> list[_Gap]:
    """Each piece whose tenant before and whose tenant after are both at home in the fast tier.

    Two steps are gone through birth by birth, with the last tenant of every address; the second one tells.
    """
    length, blocks = plan.n_layers, plan.blocks
    passing = [i for i, block in enumerate(blocks) if not (block.persistent or block.fixed)]
    births = sorted((blocks[i].start + turn * length, i) for i in passing for turn in (0, 1))
    starts: list[int] = [0]  # where each stretch of addresses with one last tenant begins
    tenants: list[int] = [-1]
    found = []
    for time, heir in births:
        begin, end = blocks[heir].offset, blocks[heir].offset + blocks[heir].nbytes
        first, last = bisect_right(starts, begin) - 1, bisect_right(starts, end - 1) - 1
        for at in range(first, last + 1):
            dead = tenants[at]
            stretch_end = starts[at + 1] if at + 1 < len(starts) else end
            piece_begin, piece_end = max(starts[at], begin), min(stretch_end, end)
            if time >= length and dead >= 0 and blocks[heir].tier == 0 and _dies_fast(plan, dead):
                layers = (blocks[heir].start - blocks[dead].stop) % length
                found.append(_Gap(layers, dead, Piece(piece_begin, piece_end - piece_begin, heir)))
        tail = [] if last + 1 < len(starts) and starts[last + 1] == end else [(end, tenants[last])]
        head = [] if starts[first] == begin else [(starts[first], tenants[first])]
        new = [*head, (begin, heir), *tail]
        starts[first : last + 1] = [start for start, _ in new]
        tenants[first : last + 1] = [tenant for _, tenant in new]
    return found


def _dies_fast(plan: Plan, block: int) -> bool:
    """Whether it was born in the fast tier, which is its home, and dies there."""
    moves = plan.moves_by_block.get(block, ())
    return plan.blocks[block].tier == 0 and (not moves or moves[-1].target == 0)
