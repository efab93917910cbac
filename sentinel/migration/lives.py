"""Births and deaths of transient blocks: the room they take, and what becomes of pages that had moved."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sentinel.core.errors import TierError
from sentinel.core.plan import Block
from sentinel.core.units import format_bytes
from sentinel.migration.block_table import BlockTable
from sentinel.migration.flights import Flights
from sentinel.migration.keeping import Piece, without
from sentinel.migration.ledger import Ledger
from sentinel.migration.mover import NativeMover
from sentinel.tiers.tier import FAST


class Lives:
    """`emulated`: a birth for which there is no fast room is born slow, by the accounts. On real nodes pages are born
    where their arena's policy says: then it is forced, counted as overflow, and `warn` hears of the first (`strict`:
    TierError). `discard(offset, nbytes)` drops pages of dead blocks: those that are not at home, so that their next
    tenant is born there, and those in fast memory, where nobody would count them. But what `keeps` tells of a block
    (see `keeping`) stays, and stays held, until its heir is born or room is short. Without `discard` all stay.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        mover: NativeMover,
        table: BlockTable,
        flights: Flights,
        ledger: Ledger,
        *,
        emulated: bool,
        warn: Callable[[str], None],
        strict: bool,
        discard: Callable[[int, int], None] | None,
        keeps: Mapping[int, tuple[Piece, ...]],
    ) -> None:
        self._blocks, self._mover, self._table, self._flights, self._ledger = blocks, mover, table, flights, ledger
        self._emulated, self._warn, self._strict, self._discard = emulated, warn, strict, discard
        self._keeps = keeps
        self._kept: dict[int, list[Piece]] = {}  # heir -> what is held for it
        self._displaced: set[int] = set()  # dead blocks whose pages are not at home, and stay

    def bear(self, born: Sequence[int], fast_bytes: int) -> int:
        """The blocks `born` take their room, at once if there is enough for their `fast_bytes`. Returns ns waited."""
        if any(self._table.held[block] or block in self._displaced for block in born):
            return self.bear_each(born)
        inherited = self._inherit(born) if self._kept else 0
        had_room, waited = self._reserve(fast_bytes - inherited)
        if not had_room:
            self._mover.release(inherited)
            return waited + self.bear_each(born)
        in_slower: Counter[int] = Counter()
        for block in born:
            spec = self._blocks[block]
            self._table.held[block] = True
            self._table.place(block, spec.tier)
            if spec.tier != FAST:
                in_slower[spec.tier] += spec.nbytes
        for tier, nbytes in in_slower.items():
            self._mover.hold(tier, nbytes)
        return waited

    def bear_each(self, born: Iterable[int]) -> int:
        """One by one: where the plan says, where the pages are, or elsewhere for want of room. Returns ns waited."""
        waited = 0
        for block in born:
            if self._table.held[block]:  # it outlived its death: the ticks were cut short
                waited += self.bury((block,))
            if block in self._kept:
                self._mover.release(self._inherit((block,)))
            nbytes = self._blocks[block].nbytes
            tier = self._table.tier[block] if block in self._displaced else self._blocks[block].tier
            self._displaced.discard(block)
            if tier != FAST:
                self._mover.hold(tier, nbytes)
            else:
                had_room, waited_for_it = self._reserve(nbytes)
                waited += waited_for_it
                tier = FAST if had_room else self._overflow(block)
            self._table.held[block] = True
            self._table.place(block, tier)
        return waited

    def bury(self, blocks: Iterable[int], *, keep: bool = False) -> int:
        """Lives are over: their room is free, they are born at home again. Returns ns waited for their transfers.

        `keep`: the plan goes on in its order, so what it has room for may stay for the next tenants.
        """
        waited, given = 0, [0] * len(self._table.bytes_in)
        for block in blocks:
            if not self._table.held[block]:
                continue
            if self._flights.of(block):
                began = time.monotonic_ns()
                self._flights.end(block)
                waited += time.monotonic_ns() - began
            spec = self._blocks[block]
            for tier, held in enumerate(self._table.bytes_in):
                given[tier] += held[block]
            self._table.held[block] = False
            if not self._emulated:
                if self._table.bytes_in[spec.tier][block] != spec.nbytes:
                    self._send_home(block)
                elif spec.tier == FAST and self._discard is not None:
                    given[FAST] -= self._keep(block) if keep else self._drop(spec.offset, spec.nbytes)
        self.give_back(given)
        self._mover.held(restart=True)  # the layer that begins never held them
        return waited

    def give_back(self, bytes_in: Sequence[int]) -> None:
        """So many bytes of each tier are held no more."""
        for tier, nbytes in enumerate(bytes_in):
            if nbytes and tier == FAST:
                self._mover.release(nbytes)
            elif nbytes:
                self._mover.hold(tier, -nbytes)

    def _reserve(self, nbytes: int) -> tuple[bool, int]:
        """Whether there was room in fast memory, which is taken then; and the ns waited for it. Room that is there at
        once is no wait, however long it took to take it."""
        if not nbytes or self._mover.take(nbytes) or (self.let_go() and self._mover.take(nbytes)):
            return True, 0
        began = time.monotonic_ns()
        had_room = self._mover.reserve(nbytes)
        return had_room, time.monotonic_ns() - began

    def _send_home(self, block: int) -> None:
        if self._discard is not None:
            self._drop(self._blocks[block].offset, self._blocks[block].nbytes)
        else:
            self._displaced.add(block)

    def _drop(self, offset: int, nbytes: int) -> int:
        """Drops pages; what stays of them: nothing."""
        assert self._discard is not None
        self._discard(offset, nbytes)
        self._ledger.totals.discarded_bytes += nbytes
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
        pieces = [piece for heir in born for piece in self._kept.pop(heir, ())]
        inherited = sum(piece.nbytes for piece in pieces)
        self._ledger.totals.kept_bytes += inherited
        return inherited

    def let_go(self) -> bool:
        """Drops all that is kept for heirs, and gives its room back; whether there was any."""
        kept, self._kept = self._kept, {}
        for piece in (piece for pieces in kept.values() for piece in pieces):
            self._drop(piece.offset, piece.nbytes)
            self._mover.release(piece.nbytes)
        return bool(kept)

    def _overflow(self, block: int) -> int:
        """There is no fast room for a birth. Returns the tier it is born in."""
        nbytes, totals = self._blocks[block].nbytes, self._ledger.totals
        name = self._blocks[block].name or f"block {block}"
        if self._emulated:
            if not totals.born_slow:
                self._ledger.event(f"{name} was born in slow memory: {format_bytes(nbytes)} had no room")
            totals.born_slow += 1
            self._mover.hold(FAST + 1, nbytes)
            return FAST + 1
        self._mover.force(nbytes)
        sentence = f"{name} was born in fast memory with no room for {format_bytes(nbytes)}: the budget was exceeded"
        if not totals.overflows:
            self._warn(f"{sentence}; the report says how often and by how much")
        totals.overflows += 1
        self._ledger.event(sentence)
        if self._strict:
            raise TierError(sentence, tier="fast", block=block)
        return FAST
