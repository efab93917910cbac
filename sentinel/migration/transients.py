"""Births and deaths of transient blocks: the room that they take and give back, and what becomes of their pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sentinel.core.plan import Plan
from sentinel.migration.block_table import BlockTable
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.keeping import Piece, kept_pieces, without
from sentinel.migration.mover import NativeMover
from sentinel.tiers.tier import FAST, Tier, holds_pages


class Unplaced(NamedTuple):
    """Its tier had no room for the birth of `block`: it is in `tier`, by force where that is the fast one."""

    block: int
    tier: int


class Transients:
    """Keeps the accounts of `mover` and `table` up to date as blocks of `plan` are born and die.

    A birth for which fast memory has no room goes to the first of `tiers` that takes unplanned births, and one for
    which a slower tier has none to the last. Where none does, since pages are born where their arena's policy says, the
    budget is exceeded.

    Where tiers hold pages, `job.discard` drops pages of dead blocks: those that are not at home, so that their next
    tenant is born there, and those in fast memory, which no account would count. What `keeping` says of a block stays,
    and stays in the accounts, until its heir is born or room is short. Without `discard` all pages stay.

    `discarded_bytes` were dropped until now, `kept_bytes` left to heirs.
    """

    def __init__(
        self, plan: Plan, tiers: Sequence[Tier | None], job: JobMemory, mover: NativeMover, table: BlockTable
    ) -> None:
        self._blocks, self._discard, self._mover, self._table = plan.blocks, job.discard, mover, table
        self._now_ns = job.clock.now_ns
        takers = (index for index, tier in enumerate(tiers) if tier is not None and tier.takes_unplanned_births)
        self._else_in = next(takers, FAST)  # where what finds no fast room is born
        self._last = len(tiers) - 1
        self._has_pages = holds_pages(tiers)
        self._keeps = kept_pieces(plan) if self._has_pages and job.discard is not None else {}
        self._kept: dict[int, list[Piece]] = {}  # heir -> what is held for it
        self._displaced: set[int] = set()  # dead blocks whose pages are not at home, and stay
        self.discarded_bytes = self.kept_bytes = 0

    # ---- births -----------------------------------------------------------------------------------------

    def reserve(self, born: Sequence[int], fast_bytes: int) -> tuple[int, Sequence[Unplaced]]:
        """The blocks `born`, which are not alive, take their room: at once if there is enough for their `fast_bytes`.

        Returns the ns waited for room, and which found none.
        """
        if self._displaced and not self._displaced.isdisjoint(born):
            return self.reserve_each(born)
        inherited = self._inherit(born) if self._kept else 0
        had_room, waited = self._take(fast_bytes - inherited)
        if not had_room:
            self._mover.release(inherited)
            waited_each, left = self.reserve_each(born)
            return waited + waited_each, left
        in_slower: dict[int, list[int]] = {}
        for block in born:
            tier = self._blocks[block].tier
            self._table.held[block] = True
            self._table.place(block, tier)
            if tier != FAST:
                in_slower.setdefault(tier, []).append(block)
        unplaced: list[Unplaced] = []
        for tier, blocks in in_slower.items():
            if self._take_slower(tier, sum(self._blocks[block].nbytes for block in blocks)):
                continue
            for block in blocks:
                if (found := self._born_slower(tier, self._blocks[block].nbytes)) != tier:
                    self._table.place(block, found)
                    unplaced.append(Unplaced(block, found))
        return waited, unplaced

    def reserve_each(self, born: Iterable[int]) -> tuple[int, Sequence[Unplaced]]:
        """As `reserve`, one by one: where the plan says, where the pages are, or elsewhere for want of room."""
        waited, unplaced = 0, []
        for block in born:
            if block in self._kept:
                self._mover.release(self._inherit((block,)))
            nbytes = self._blocks[block].nbytes
            tier = self._table.tier[block] if block in self._displaced else self._blocks[block].tier
            self._displaced.discard(block)
            found = tier
            if tier != FAST:
                found = self._born_slower(tier, nbytes)
            else:
                had_room, waited_for_it = self._take(nbytes)
                waited += waited_for_it
                if not had_room and self._else_in == FAST:
                    self._mover.force(nbytes)
                    unplaced.append(Unplaced(block, FAST))
                elif not had_room:
                    found = self._born_slower(self._else_in, nbytes)
            if found != tier:
                unplaced.append(Unplaced(block, found))
            self._table.held[block] = True
            self._table.place(block, found)
        return waited, unplaced

    def _take(self, nbytes: int) -> tuple[bool, int]:
        """Whether there was room in fast memory, which is taken then; and the ns waited for it. Room that is there at
        once is no wait, however long it took to take it."""
        if not nbytes or self._mover.take(nbytes) or (self.release_kept() and self._mover.take(nbytes)):
            return True, 0
        began = self._now_ns()
        had_room = self._mover.reserve(nbytes)
        return had_room, self._now_ns() - began

    def _born_slower(self, tier: int, nbytes: int) -> int:
        """The tier in which a birth takes room: slower tier `tier`, or the last one where it has none."""
        if self._take_slower(tier, nbytes):
            return tier
        self._mover.hold(self._last, nbytes)
        return self._last

    def _take_slower(self, tier: int, nbytes: int) -> bool:
        """Whether a slower tier had room for births, which is taken then. The last one, and pages, which are born where
        they are, go nowhere else."""
        if tier != self._last and self._else_in != FAST:
            return self._mover.take_in(tier, nbytes)
        self._mover.hold(tier, nbytes)
        return True

    # ---- deaths -----------------------------------------------------------------------------------------

    def release(self, blocks: Iterable[int], *, keep: bool = False) -> None:
        """Lives are over, and nothing is under way for them: their room is free, they are born at home again.

        `keep`: the plan goes on in its order, so what it has room for may stay for the next tenants.
        """
        given = [0] * len(self._table.bytes_in)
        for block in blocks:
            if not self._table.held[block]:
                continue
            for tier, held in enumerate(self._table.bytes_in):
                given[tier] += held[block]
            self._table.held[block] = False
            if self._has_pages:
                given[FAST] -= self._leave_pages(block, keep=keep)
        self.give_back(given)
        self._mover.restart_high_bytes()  # the layer that begins never held them

    def give_back(self, bytes_in: Sequence[int]) -> None:
        """So many bytes of each tier are held no more."""
        for tier, nbytes in enumerate(bytes_in):
            if nbytes and tier == FAST:
                self._mover.release(nbytes)
            elif nbytes:
                self._mover.hold(tier, -nbytes)

    def release_kept(self) -> bool:
        """Drop all that is kept for heirs, and give its room back; whether there was any."""
        kept, self._kept = self._kept, {}
        for piece in (piece for pieces in kept.values() for piece in pieces):
            self._drop(piece.offset, piece.nbytes)
            self._mover.release(piece.nbytes)
        return bool(kept)

    def _leave_pages(self, block: int, *, keep: bool) -> int:
        """What becomes of the pages of a dead block. Returns the fast bytes that stay in the accounts."""
        spec = self._blocks[block]
        away = self._table.bytes_in[spec.tier][block] != spec.nbytes
        if self._discard is None:
            if away:
                self._displaced.add(block)
        elif away or (spec.tier == FAST and not keep):
            self._drop(spec.offset, spec.nbytes)
        elif spec.tier == FAST:
            return self._keep(block)
        return 0

    def _keep(self, block: int) -> int:
        """The bytes of a dead block that stay held for the heirs of its pages; the rest is dropped."""
        spec, pieces = self._blocks[block], self._keeps.get(block, ())
        for offset, nbytes in without(spec.offset, spec.nbytes, pieces):
            self._drop(offset, nbytes)
        for piece in pieces:
            self._kept.setdefault(piece.heir, []).append(piece)
        return sum(piece.nbytes for piece in pieces)

    def _inherit(self, born: Sequence[int]) -> int:
        """Bytes that are held for these blocks, and theirs from now on."""
        inherited = sum(piece.nbytes for heir in born for piece in self._kept.pop(heir, ()))
        self.kept_bytes += inherited
        return inherited

    def _drop(self, offset: int, nbytes: int) -> None:
        assert self._discard is not None
        self.discarded_bytes += self._discard(offset, nbytes)
