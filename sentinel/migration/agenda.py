"""What the engine does as each layer begins, laid out once: `core.schedule` by direction and life."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.core.plan import Plan
from sentinel.core.schedule import schedule

Batch = tuple[int, ...]


class Agenda:
    """Per layer, indexes into `plan.migrations` or `plan.blocks`.

    `before_births`, `after_births`: what starts, demotions first, in batches that begin together, each block once in a
    batch. Births take their room before promotions of the same layer may, and after demotions of blocks that were
    there before: by the law of capacity all fit, and where reality lags behind the plan a birth cannot wait while a
    promotion can. `due`, `dead`, `born`: as in Schedule. `born_fast_bytes`: room that births take. `busy`: whether
    there is anything to do. `expects`: whether promotions are due.

    Not per layer: `crossing`, batches of migrations under way as layer 0 begins, demotions first. Of each migration:
    `asked`, its block, tiers, bytes and reason; `used_later`, whether its block is used after the layer before which it
    is due, before it moves again. `plan` carries its uses.
    """

    def __init__(self, plan: Plan) -> None:
        moves, blocks, length = plan.migrations, plan.blocks, plan.n_layers
        when = schedule(plan)
        self.due, self.dead, self.born = when.due_before, when.dead_at, when.born_at
        self.before_births: list[list[Batch]] = []
        self.after_births: list[list[Batch]] = []
        for starting, born in zip(when.starts_at, when.born_at, strict=True):
            newborn = set(born)
            down = [index for index in starting if moves[index].target]
            there = [index for index in down if moves[index].block not in newborn]
            after = [index for index in down if moves[index].block in newborn]
            after += [index for index in starting if not moves[index].target]
            self.before_births.append(_batches(plan, there if born else there + after))
            self.after_births.append(_batches(plan, after) if born else [])
        self.born_fast_bytes = [sum(blocks[i].nbytes for i in born if not blocks[i].tier) for born in when.born_at]
        self.expects = [any(not moves[index].target for index in due) for due in when.due_before]
        rows = zip(when.starts_at, when.due_before, when.born_at, when.dead_at, strict=True)
        self.busy = [any(row) for row in rows]
        crossing = (index for index, move in enumerate(moves) if move.due > length)
        self.crossing = _batches(plan, sorted(crossing, key=lambda index: not moves[index].target))
        self.asked = [(move.block, move.source, move.target, blocks[move.block].nbytes, move.reason) for move in moves]
        self.used_later = _used_later(plan)

    @property
    def boundaries(self) -> list[int]:
        """The layers before which promotions are due."""
        return [layer for layer, expects in enumerate(self.expects) if expects]


def _batches(plan: Plan, migrations: Iterable[int]) -> list[Batch]:
    """`migrations` in this order, and cut before a block comes again."""
    batches: list[dict[int, int]] = []
    for index in migrations:
        block = plan.migrations[index].block
        if not batches or block in batches[-1]:
            batches.append({})
        batches[-1][block] = index
    return [tuple(batch.values()) for batch in batches]


def _used_later(plan: Plan) -> list[bool]:
    """See Agenda."""
    length = max(plan.n_layers, 1)
    layers: dict[int, list[int]] = {}
    for block, layer in zip(plan.uses["block"].tolist(), plan.uses["layer"].tolist(), strict=True):
        layers.setdefault(block, []).append(layer)
    starts: dict[int, list[int]] = {}
    for move in plan.migrations:
        starts.setdefault(move.block, []).append(move.start)

    def later(block: int, due: int) -> bool:
        after = min((start - due) % length for start in starts[block])
        return any(0 < (layer - due) % length < after for layer in layers.get(block, ()))

    return [later(move.block, move.due) for move in plan.migrations]
