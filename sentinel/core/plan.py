"""Plan: where every tensor lives at every layer, and the laws it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan_columns import (
    BlockColumns,
    Flights,
    MoveColumns,
    SlotColumns,
    block_columns,
    flights_of,
    move_columns,
    slot_columns,
    spans_of,
)
from sentinel.core.trace import LayerId
from sentinel.core.units import format_bytes

Reason = Literal["prefetch", "evict", "mid-interval", "initial", "restore"]


@dataclass(frozen=True)
class Segment:
    """Plan addresses [offset, offset + nbytes) whose pages are born in tier `tier`."""

    offset: int
    nbytes: int
    tier: int


@dataclass(frozen=True)
class Slot:
    """Where one tensor lives: plan address `offset`. A transient is told by `key` (layer, ordinal of
    its allocation), a persistent tensor by `name`."""

    tensor: int
    name: str
    key: tuple[int, int] | None
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Block:
    """Unit of migration: plan addresses [offset, offset + nbytes), whole pages.

    Alive in layers [start, stop) (unrolled, modulo L), born in tier `tier`. A `persistent` block lives
    across steps: start = 0, stop = L, and `tier` is where it is as layer 0 begins. `tensors` are indexes
    into the profile; a page range of a large tensor has that tensor only. A block with `fixed` holds
    many tensors that share its bytes over time (the short-lived pool, and transients that never
    migrate); it is resident all step and is never migrated.
    """

    offset: int
    nbytes: int
    start: int
    stop: int
    tier: int
    tensors: tuple[int, ...]
    name: str = ""
    persistent: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class Migration:
    """Starts at the beginning of layer `start`; must have ended before layer `due` begins.

    `start` is in [0, L); `due` is unrolled, in (start, start + L]. Until then the block holds room on both sides.
    """

    block: int
    source: int
    target: int
    nbytes: int
    start: int
    due: int
    reason: Reason


USE_DTYPE = np.dtype(
    [
        ("block", "<i4"),
        ("layer", "<i4"),
        ("reads", "<i4"),  # operands read and written: each costs one latency
        ("writes", "<i4"),
        ("read_bytes", "<i8"),
        ("written_bytes", "<i8"),
        ("touched_bytes", "<i8"),
    ]
)
"""What is used of each block in each layer; one row a pair, sorted."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The decision for one step, repeated every step.

    `capacity_bytes[t]`: budget of tier t. `migrations` are in submission order within a layer: demotions
    before promotions. `footprint_bytes`: of the all-fast plan, packed in pages. `fast_needed_bytes`: the
    paper's bound. `predicted_step_ns`: by the simulator, None if not simulated. `details` is what the
    policy wants to tell (`mil`, `cases`, alternatives tried), JSON values only. `uses` is the profile's
    accesses summed by block (see `core.uses`), so that a saved plan can be applied without its profile.
    """

    policy: str
    layers: tuple[LayerId, ...]
    tier_names: tuple[str, ...]
    capacity_bytes: tuple[int, ...]
    segments: tuple[Segment, ...]
    slots: tuple[Slot, ...]
    blocks: tuple[Block, ...]
    migrations: tuple[Migration, ...]
    footprint_bytes: int
    fast_needed_bytes: int
    predicted_step_ns: int | None = None
    bound_step_ns: int | None = None
    provisional: bool = False
    uses: NDArray[Any] = field(default_factory=lambda: np.zeros(0, USE_DTYPE))
    details: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: a prompt or a notebook prints what `end_profile()` returns, and that has thousands of slots."""
        provisional = ", provisional" if self.provisional else ""
        return (
            f"<Plan {self.policy}{provisional}: {self.n_layers} layers, {len(self.slots)} slots,"
            f" {len(self.migrations)} migrations ({format_bytes(self.migrated_bytes_per_step)}) a step,"
            f" {self.tier_names[0]} {format_bytes(self.capacity_bytes[0])} of {format_bytes(self.footprint_bytes)}>"
        )

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return len(self.layers)

    @property
    def extent_bytes(self) -> int:
        """Bytes of plan addresses in use."""
        return max((s.offset + s.nbytes for s in self.segments), default=0)

    def told(self, **changes: Any) -> Plan:
        """`replace` of what is told about a plan: what was made of its rows is kept, for these stay as they are."""
        if not changes.keys() <= _TOLD:
            raise TypeError(f"{', '.join(sorted(changes.keys() - _TOLD))}: use dataclasses.replace for rows")
        made = replace(self, **changes)
        made.__dict__.update({name: self.__dict__[name] for name in _MADE_OF_ROWS if name in self.__dict__})
        return made

    @cached_property
    def moves_by_block(self) -> dict[int, tuple[Migration, ...]]:
        """Migrations of each block that has any, in the order of the block's life."""
        found: dict[int, list[Migration]] = {}
        for move in self.migrations:
            found.setdefault(move.block, []).append(move)
        return {
            index: tuple(sorted(moves, key=lambda move: self.unrolled_start(move))) for index, moves in found.items()
        }

    def unrolled_start(self, move: Migration) -> int:
        """Start layer of `move` counted from the birth of its block: in [block.start, block.start + L)."""
        return move.start if move.start >= self.blocks[move.block].start else move.start + self.n_layers

    @cached_property
    def block_columns(self) -> BlockColumns:
        """`blocks` as columns. Raises PlanError for a number that no machine has."""
        return block_columns(self.blocks)

    @cached_property
    def move_columns(self) -> MoveColumns:
        """`migrations` as columns. Raises PlanError for a number that no machine has."""
        return move_columns(self.migrations)

    @cached_property
    def slot_columns(self) -> SlotColumns:
        """`slots` as columns. Raises PlanError for a number that no machine has."""
        return slot_columns(self.slots)

    @cached_property
    def flights(self) -> Flights:
        """All migrations by block and life. Their blocks must be there."""
        return flights_of(self.block_columns, self.move_columns, self.n_layers)

    @cached_property
    def spans(self) -> NDArray[Any]:
        """When each block is in which tier: dtype SPAN_DTYPE, in unrolled layers, by block then layer.

        [start, stop): usable from there. [held_from, held_until): holds room there, transfers included.
        A span of a persistent block may reach past L, or start before 0; layers count modulo L.
        """
        return spans_of(self.block_columns, self.move_columns, self.flights, self.n_layers)

    @cached_property
    def placement(self) -> NDArray[np.int8]:
        """(blocks, L) the tier in which each block is used in each layer, -1 where it is not alive. Dense."""
        where = np.full((len(self.blocks), self.n_layers), -1, np.int8)
        for index, tier, start, stop, _, _ in self.spans.tolist():
            where[index, np.arange(start, stop) % self.n_layers] = tier
        return where

    @cached_property
    def held_bytes(self) -> NDArray[np.int64]:
        """(tiers, L) bytes each tier holds in each layer, migrations in flight counted on both sides."""
        spans = self.spans
        weights = self.block_columns.nbytes[spans["block"]]
        return ring_sum(
            spans["tier"], spans["held_from"], spans["held_until"], weights, len(self.tier_names), self.n_layers
        )

    @property
    def fast_peak_bytes(self) -> int:
        """Most that the fast tier ever holds."""
        return int(self.held_bytes[0].max(initial=0))

    @property
    def migrated_bytes_per_step(self) -> int:
        """Bytes moved in one step."""
        return sum(move.nbytes for move in self.migrations)


_TOLD = {"policy", "capacity_bytes", "footprint_bytes", "fast_needed_bytes", "predicted_step_ns", "bound_step_ns"}
_TOLD |= {"provisional", "uses", "details", "origin"}
_MADE_OF_ROWS = [name for name, value in vars(Plan).items() if isinstance(value, cached_property)]


def ring_sum(
    row: NDArray[Any], start: NDArray[Any], stop: NDArray[Any], weight: NDArray[np.int64], n_rows: int, length: int
) -> NDArray[np.int64]:
    """(n_rows, length) sum of `weight` over ranges [start, stop) of a ring; no range is longer than the ring.

    Starts may be negative and stops may pass the end.
    """
    out = np.zeros(n_rows * (length + 1), np.int64)  # flat: sums at pairs of indexes take six times as long
    width = stop.astype(np.int64) - start
    some = width > 0
    head, weight, width = row[some].astype(np.int64) * (length + 1), weight[some], width[some]
    begin = start[some].astype(np.int64) % length
    end = begin + width
    np.add.at(out, head + begin, weight)
    np.add.at(out, head + np.minimum(end, length), -weight)
    over = end > length
    np.add.at(out, head[over], weight[over])
    np.add.at(out, (head + end)[over] - length, -weight[over])
    return out.reshape(n_rows, length + 1).cumsum(axis=1)[:, :-1]
