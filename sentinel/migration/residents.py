"""Blocks that are alive as layer 0 begins: persistent, fixed, and transient ones that live across the step's end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from sentinel.core.plan import Plan, Reason
from sentinel.migration.block_table import BlockTable
from sentinel.migration.handover import Pieces
from sentinel.migration.mover import NativeMover
from sentinel.migration.transients import Unplaced
from sentinel.tiers.tier import FAST, Tier


class Wanted(NamedTuple):
    """`block` is in tier `source`, and wanted in tier `target`."""

    block: int
    source: int
    target: int
    reason: Reason


Way = Literal["out", "into fast memory", "into a middle tier"]
"""Where a block is to go: out of fast memory or to the last tier; into fast memory; or from one slower tier into
another, for which the other two ways make room."""


class Residents:
    """Brings blocks of `plan` into the accounts of `mover` and into `table`, and says which are elsewhere than wanted.

    Block numbers: `lasting` blocks are persistent, `wrapping` ones transient and alive as layer 0 begins, `passing`
    ones the other transients. `wanted`: the tier at layer 0 of the lasting and the wrapping ones. `ranges`: see
    JobMemory.
    """

    def __init__(
        self,
        plan: Plan,
        tiers: Sequence[Tier | None],
        ranges: Callable[[int], list[tuple[int, int]]],
        mover: NativeMover,
        table: BlockTable,
    ) -> None:
        self._blocks, self._tiers, self._ranges, self._mover, self._table = plan.blocks, tiers, ranges, mover, table
        each = list(enumerate(plan.blocks))
        transients = [index for index, block in each if not (block.persistent or block.fixed)]
        self.lasting = [index for index, block in each if block.persistent]
        self.wrapping = [index for index in transients if plan.blocks[index].stop > plan.n_layers]
        self.passing = [index for index in transients if plan.blocks[index].stop <= plan.n_layers]
        at_zero = plan.placement[:, 0].tolist() if plan.n_layers else []
        self.wanted: dict[int, int] = {index: at_zero[index] for index in (*self.lasting, *self.wrapping)}

    @cached_property
    def _pieces(self) -> Pieces:
        """Where persistent blocks are in this process, found when first asked for."""
        return Pieces(self.lasting, self._ranges)

    # ---- into the accounts and out of them --------------------------------------------------------------

    def place(self) -> list[Wanted]:
        """No plan was applied until now: persistent blocks go into the accounts. Returns which are to be moved."""
        for index in self.lasting:
            tier = self.wanted[index]
            self._hold(index, tier if self._born_in(tier) else FAST)
        away = ((index, self.wanted[index]) for index in self.lasting if self._table.tier[index] != self.wanted[index])
        return [Wanted(index, FAST, tier, "initial") for index, tier in away]

    def place_others(self) -> list[Unplaced]:
        """Those that are not persistent go into the accounts. Returns for which a middle tier had no room."""
        for index, block in enumerate(self._blocks):
            if block.fixed and not self._table.held[index]:
                self._hold(index, block.tier)
        for index in self.wrapping:
            # Born before there was a plan, its tensor is elsewhere and its own pages are not there yet: on no node.
            self._hold_new(index, self.wanted[index])
        here = self._table.tier
        return [Unplaced(index, here[index]) for index in self.wrapping if here[index] != self.wanted[index]]

    def take(self, spans: NDArray[Any]) -> None:
        """Persistent blocks are where `spans`, of dtype SPAN_DTYPE, say: they go into the accounts."""
        for index, bytes_in in self._pieces.read(spans, len(self._tiers)).items():
            self._mover.force(bytes_in[FAST])
            for tier, nbytes in enumerate(bytes_in[FAST + 1 :], FAST + 1):
                self._mover.hold(tier, nbytes)
            self._table.held[index] = True
            self._table.put_parts(index, bytes_in, self.wanted[index])

    def give(self) -> NDArray[Any]:
        """Where persistent blocks are, of dtype SPAN_DTYPE."""
        return self._pieces.tell(self._table.bytes_in, self._table.nbytes)

    def partly_away(self) -> list[int]:
        """Persistent blocks that have bytes outside fast memory."""
        return [index for index in self.lasting if self._table.fast_bytes[index] < self._table.nbytes[index]]

    def _hold_new(self, index: int, tier: int) -> None:
        """In slower tier `tier`, or the last one where it has no room yet. Pages are born where they are."""
        nbytes, last = self._table.nbytes[index], len(self._tiers) - 1
        if tier in (FAST, last) or not self._born_in(tier):
            self._hold(index, tier)
        elif self._mover.take_in(tier, nbytes):
            self._table.held[index] = True
            self._table.place(index, tier)
        else:
            self._hold(index, last)

    def _hold(self, index: int, tier: int) -> None:
        nbytes = self._table.nbytes[index]
        if tier == FAST:
            self._mover.force(nbytes)
        else:
            self._mover.hold(tier, nbytes)
        self._table.held[index] = True
        self._table.place(index, tier)

    # ---- elsewhere than wanted --------------------------------------------------------------------------

    def misplaced(self, under_way: Collection[int], way: Way) -> list[Wanted]:
        """Those that are elsewhere than they should be in layer 0, for which nothing is `under_way`, and that are to go
        this way. Those to the last tier come first: they make room for others."""
        found = []
        for block, target in self.wanted.items():
            here = self._table.tier[block]
            if here == target or not self._table.held[block] or block in under_way:
                continue
            if self._way(here, target) == way:
                found.append(Wanted(block, here, target, "prefetch" if target == FAST else "evict"))
        found.sort(key=lambda each: each.target, reverse=True)
        return found

    def _way(self, here: int, target: int) -> Way:
        if target == FAST:
            return "into fast memory"
        return "out" if here == FAST or target == len(self._tiers) - 1 else "into a middle tier"

    def away_from_home(self) -> list[Wanted]:
        """Blocks, transient ones too, that have bytes outside fast memory which were moved there. They count as being
        there from now on."""
        found = []
        for index, block in enumerate(self._blocks):
            if block.fixed or not self._table.held[index] or self._table.fast_bytes[index] == block.nbytes:
                continue
            source = self._table.slower_tier(index)
            if not self._born_in(source):
                self._table.tier[index] = source
                found.append(Wanted(index, source, FAST, "restore"))
        return found

    def _born_in(self, tier: int) -> bool:
        beside = self._tiers[tier]
        return beside is None or beside.takes_unplanned_births
