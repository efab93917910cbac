"""What a Plan means in time. The simulator and the engine both ask here, so they cannot disagree.

As layer k begins, in this order:
  1. what is due before k must have ended (`due_before`): wait for it, or use the block where it is
     if that tier is addressable (test and trial decides);
  2. blocks whose last layer was k - 1 give their room back (`dead_at`);
  3. the migrations that start at k are submitted, in plan order (`starts_at`): each direction has one
     mover, a promotion waits for room in its target, which demotions ahead of it free;
  4. blocks born in k take their room (`born_at`), waiting for it if need be.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan


@dataclass(frozen=True)
class Schedule:
    """Per layer, indexes into `plan.migrations` or `plan.blocks`. Each tuple has one entry a layer."""

    starts_at: tuple[tuple[int, ...], ...]
    due_before: tuple[tuple[int, ...], ...]
    born_at: tuple[tuple[int, ...], ...]
    dead_at: tuple[tuple[int, ...], ...]


def schedule(plan: Plan) -> Schedule:
    """The schedule of one step of `plan`. Persistent and fixed blocks are neither born nor dead in it."""
    length, blocks, moves = plan.n_layers, plan.block_columns, plan.move_columns
    living = np.flatnonzero(~blocks.lasting)
    everything = np.arange(len(moves))
    return Schedule(
        _by_layer(moves.start, everything, length),
        _by_layer(moves.due % length, everything, length),
        _by_layer(blocks.start[living], living, length),
        _by_layer(blocks.stop[living] % length, living, length),
    )


def _by_layer(layer: NDArray[np.int64], index: NDArray[np.int64], length: int) -> tuple[tuple[int, ...], ...]:
    """One entry a layer: the indexes that have it, in their order."""
    order = np.argsort(layer, kind="stable")
    found = tuple(index[order].tolist())
    cuts = np.searchsorted(layer[order], np.arange(length + 1)).tolist()
    return tuple(found[low:high] for low, high in pairwise(cuts))
