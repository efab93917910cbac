"""The rows of a plan as columns, for whoever looks at all of them: a plan may have many thousands.

All numbers stay below `MOST`, so that two of them add up in 64 bits: who makes columns of a plan from a file is told
so by a PlanError, before any sum is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError

if TYPE_CHECKING:
    from sentinel.core.plan import Block, Migration, Slot

MOST = 1 << 62


@dataclass(frozen=True, eq=False)
class BlockColumns:
    """(blocks,) each, as `Block` has them. `tensors`, `owner`: one entry for each tensor that a block names, by block.

    `lasting`: persistent or fixed, thus never born and never dead.
    """

    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    tier: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    fixed: NDArray[np.bool_]
    tensors: NDArray[np.int64]
    owner: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def lasting(self) -> NDArray[np.bool_]:
        """(blocks,) whether the block lives through the whole step."""
        return self.persistent | self.fixed


@dataclass(frozen=True, eq=False)
class MoveColumns:
    """(migrations,) each, in the order of the plan, as `Migration` has them."""

    block: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    start: NDArray[np.int64]
    due: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True, eq=False)
class SlotColumns:
    """(slots,) each, as `Slot` has them. `layer`: of the allocation that a key names, -1 of a persistent tensor's."""

    tensor: NDArray[np.int64]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    layer: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class Flights:
    """(migrations,) each, by block, those of one block in the order of its life.

    `move`: index into the plan's migrations. The flight takes layers [begin, end), unrolled from the block's birth.
    `head`, `tail`: whether it is the first, the last one of its block.
    """

    move: NDArray[np.int64]
    block: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    head: NDArray[np.bool_]
    tail: NDArray[np.bool_]


SPAN_DTYPE = np.dtype(
    [
        ("block", "<i4"),
        ("tier", "<i4"),
        ("start", "<i4"),
        ("stop", "<i4"),
        ("held_from", "<i4"),
        ("held_until", "<i4"),
    ]
)


def block_columns(blocks: Sequence[Block]) -> BlockColumns:
    """The columns of `blocks`. Raises PlanError for a number that is too large."""
    counts = np.fromiter((len(block.tensors) for block in blocks), np.int64, len(blocks))
    return BlockColumns(
        offset=_numbers(blocks, "offset"),
        nbytes=_numbers(blocks, "nbytes"),
        start=_numbers(blocks, "start"),
        stop=_numbers(blocks, "stop"),
        tier=_numbers(blocks, "tier"),
        persistent=_flags(blocks, "persistent"),
        fixed=_flags(blocks, "fixed"),
        tensors=_bounded((tensor for block in blocks for tensor in block.tensors), int(counts.sum()), "tensor"),
        owner=np.repeat(np.arange(len(blocks)), counts),
    )


def move_columns(moves: Sequence[Migration]) -> MoveColumns:
    """The columns of `moves`. Raises PlanError for a number that is too large."""
    return MoveColumns(*(_numbers(moves, name) for name in ("block", "source", "target", "nbytes", "start", "due")))


def slot_columns(slots: Sequence[Slot]) -> SlotColumns:
    """The columns of `slots`. Raises PlanError for a number that is too large."""
    n = len(slots)
    return SlotColumns(
        tensor=_numbers(slots, "tensor"),
        offset=_numbers(slots, "offset"),
        nbytes=_numbers(slots, "nbytes"),
        persistent=np.fromiter((slot.key is None for slot in slots), bool, n),
        layer=_bounded((-1 if slot.key is None else slot.key[0] for slot in slots), n, "layer"),
    )


def flights_of(blocks: BlockColumns, moves: MoveColumns, length: int) -> Flights:
    """The flights of a plan of `length` layers."""
    begin = moves.start + np.where(moves.start < blocks.start[moves.block], length, 0)
    order = np.lexsort((begin, moves.block))
    block = moves.block[order]
    head = np.diff(block, prepend=-1) != 0
    tail = np.append(head[1:], np.ones(min(len(head), 1), bool))
    return Flights(order, block, begin[order], (begin + moves.due - moves.start)[order], head, tail)


def spans_of(blocks: BlockColumns, moves: MoveColumns, flights: Flights, length: int) -> NDArray[Any]:
    """Rows of SPAN_DTYPE; see `Plan.spans`. A block has one for its birth, and one for where each flight takes it.

    A persistent block that flies is never born: its last flight of the step before is its first span.
    """
    block, begin, end = flights.block, flights.begin, flights.end
    counts = np.bincount(block, minlength=len(blocks))
    born = (counts == 0) | ~blocks.persistent
    first_row = np.cumsum(counts + born) - (counts + born)
    out = np.zeros(int((counts + born).sum()), SPAN_DTYPE)
    births = np.flatnonzero(born)
    row = first_row[births]
    out["block"][row], out["tier"][row] = births, blocks.tier[births]
    out["start"][row] = out["held_from"][row] = blocks.start[births]
    out["stop"][row] = out["held_until"][row] = blocks.stop[births]
    heads, tails = np.flatnonzero(flights.head), np.flatnonzero(flights.tail)
    # until the next flight of the block is over, or until its death; after the last one of a ring, the first one's
    until = np.append(end[1:], 0)[: len(end)]
    until[tails] = np.where(
        blocks.persistent[block[tails]], end[heads], np.maximum(blocks.stop[block[tails]], end[tails])
    )
    held_until = until.copy()
    dying = tails[~blocks.persistent[block[tails]]]
    held_until[dying] = blocks.stop[block[dying]]
    closing = tails[blocks.persistent[block[tails]]]
    earlier = np.zeros(len(block), np.int64)
    earlier[closing] = length
    row = first_row[block] + 1 + np.arange(len(block)) - np.repeat(heads, counts[block[heads]])
    row[closing] = first_row[block[closing]]
    out["block"][row], out["tier"][row] = block, moves.target[flights.move]
    out["start"][row], out["held_from"][row] = end - earlier, begin - earlier
    out["stop"][row], out["held_until"][row] = until, held_until
    flown = heads[~blocks.persistent[block[heads]]]
    birth = first_row[block[flown]]
    out["stop"][birth] = out["held_until"][birth] = end[flown]
    return out


def _numbers(rows: Sequence[Any], name: str) -> NDArray[np.int64]:
    return _bounded(map(attrgetter(name), rows), len(rows), name)


def _flags(rows: Sequence[Any], name: str) -> NDArray[np.bool_]:
    return np.fromiter(map(attrgetter(name), rows), bool, len(rows))


def _bounded(numbers: Any, n: int, name: str) -> NDArray[np.int64]:
    try:
        found = np.fromiter(numbers, np.int64, n)
    except OverflowError:
        raise PlanError(f"a plan has a {name} that is larger than any machine's") from None
    if n and max(int(found.max()), -int(found.min())) >= MOST:
        raise PlanError(f"a plan has a {name} that is larger than any machine's")
    return found
