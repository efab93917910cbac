"""Blocks that are alive as layer 0 begins: persistent, fixed, and transient ones that live across the step's end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from sentinel.core.plan import Plan, Reason
from sentinel.migration.block_table import BlockTable
from sentinel.migration.handover import Pieces
from sentinel.migration.mover import NativeMover
from sentinel.tiers.tier import FAST, Tier


class Wanted(NamedTuple):
    """`block` is in tier `source`, and wanted in tier `target`."""

    block: int
    source: int
    target: int
    reason: Reason


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
        """No plan was applied until now: all residents go into the accounts. Returns which are to be moved."""
        for index in self.lasting:
            tier = self.wanted[index]
            self._hold(index, tier if self._born_in(tier) else FAST)
        self.place_others()
        away = ((index, self.wanted[index]) for index in self.lasting if self._table.tier[index] != self.wanted[index])
        return [Wanted(index, FAST, tier, "initial") for index, tier in away]

    def place_others(self) -> None:
        """Those that are not persistent go into the accounts."""
        for index, block in enumerate(self._blocks):
            if block.fixed and not self._table.held[index]:
                self._hold(index, block.tier)
        for index in self.wrapping:
            # Born before there was a plan, its tensor is elsewhere and its own pages are not there yet: on no node.
            self._hold_new(index, self.wanted[index])

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

    def misplaced(self, under_way: Collection[int], *, demoting: bool) -> list[Wanted]:
        """Those that are elsewhere than they should be in layer 0, and for which nothing is `under_way`: to be sent out
        of fast memory, or (not `demoting`) into it."""
        found = []
        for block, target in self.wanted.items():
            here = self._table.tier[block]
            if here != target and (target != FAST) == demoting and self._table.held[block] and block not in under_way:
                found.append(Wanted(block, here, target, "evict" if demoting else "prefetch"))
        # What leaves a tier makes room in it for the others.
        found.sort(key=lambda each: (each.target, -each.source), reverse=True)
        return found

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
