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
    length = plan.n_layers
    starts: list[list[int]] = [[] for _ in range(length)]
    due: list[list[int]] = [[] for _ in range(length)]
    born: list[list[int]] = [[] for _ in range(length)]
    dead: list[list[int]] = [[] for _ in range(length)]
    for index, move in enumerate(plan.migrations):
        starts[move.start].append(index)
        due[move.due % length].append(index)
    for index, block in enumerate(plan.blocks):
        if not (block.persistent or block.fixed):
            born[block.start].append(index)
            dead[block.stop % length].append(index)
    freeze = [tuple(tuple(row) for row in rows) for rows in (starts, due, born, dead)]
    return Schedule(*freeze)
