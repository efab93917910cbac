"""Births and deaths of transient blocks: the room they take, and what becomes of pages that had moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from sentinel.core.errors import TierError
from sentinel.core.plan import Block
from sentinel.core.units import format_bytes
from sentinel.migration.flights import Flights
from sentinel.migration.ledger import Ledger
from sentinel.migration.mover import NativeMover
from sentinel.migration.residence import Residence


class Lives:
    """`emulated`: a birth for which there is no fast room is born slow, by the accounts. On real nodes pages are born
    where their arena's policy says: then it is forced, counted as overflow, and `warn` hears of the first (`strict`:
    TierError). `discard(block)` drops the pages of a dead block that are not at home; without it they stay there.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        mover: NativeMover,
        where: Residence,
        flights: Flights,
        ledger: Ledger,
        *,
        emulated: bool,
        warn: Callable[[str], None],
        strict: bool,
        discard: Callable[[int], None] | None,
    ) -> None:
        self._blocks, self._mover, self._where, self._flights, self._ledger = blocks, mover, where, flights, ledger
        self._emulated, self._warn, self._strict, self._discard = emulated, warn, strict, discard
        self._displaced: set[int] = set()  # dead blocks whose pages are not at home, and stay

    def bear(self, born: Sequence[int], fast_bytes: int) -> int:
        """The blocks `born` take their room, at once if there is enough for their `fast_bytes`. Returns ns waited."""
        if any(self._where.held[block] or block in self._displaced for block in born):
            return self.bear_each(born)
        had_room, waited = self._reserve(fast_bytes)
        if not had_room:
            return waited + self.bear_each(born)
        slow_bytes = 0
        for block in born:
            spec = self._blocks[block]
            self._where.held[block] = True
            self._where.settle(block, spec.tier, 0 if spec.tier else spec.nbytes)
            slow_bytes += spec.nbytes if spec.tier else 0
        if slow_bytes:
            self._mover.hold_slow(slow_bytes)
        return waited

    def bear_each(self, born: Iterable[int]) -> int:
        """One by one: where the plan says, where the pages are, or elsewhere for want of room. Returns ns waited."""
        waited = 0
        for block in born:
            if self._where.held[block]:  # it outlived its death: the ticks were cut short
                waited += self.bury((block,))
            nbytes = self._blocks[block].nbytes
            tier = self._where.tier[block] if block in self._displaced else self._blocks[block].tier
            self._displaced.discard(block)
            if tier:
                self._mover.hold_slow(nbytes)
            else:
                had_room, waited_for_it = self._reserve(nbytes)
                waited += waited_for_it
                tier = 0 if had_room else self._overflow(block)
            self._where.held[block] = True
            self._where.settle(block, tier, 0 if tier else nbytes)
        return waited

    def bury(self, blocks: Iterable[int]) -> int:
        """Lives are over: their room is free, they are born at home again. Returns ns waited for their transfers."""
        waited = fast_bytes = slow_bytes = 0
        for block in blocks:
            if not self._where.held[block]:
                continue
            if self._flights.of(block):
                began = time.monotonic_ns()
                self._flights.end(block)
                waited += time.monotonic_ns() - began
            spec, fast = self._blocks[block], self._where.fast_bytes[block]
            fast_bytes += fast
            slow_bytes += spec.nbytes - fast
            self._where.held[block] = False
            if not self._emulated:
                if fast != (0 if spec.tier else spec.nbytes):
                    self._send_home(block)
                elif fast and self._discard is not None:
                    self._discard(block)  # else the dead pages stay in fast memory, where nobody counts them
        if fast_bytes:
            self._mover.release(fast_bytes)
        if slow_bytes:
            self._mover.hold_slow(-slow_bytes)
        self._mover.held(restart=True)  # the layer that begins never held them
        return waited

    def _reserve(self, nbytes: int) -> tuple[bool, int]:
        """Whether there was room in fast memory, which is taken then; and the ns waited for it. Room that is there at
        once is no wait, however long it took to take it."""
        if not nbytes or self._mover.take(nbytes):
            return True, 0
        began = time.monotonic_ns()
        had_room = self._mover.reserve(nbytes)
        return had_room, time.monotonic_ns() - began

    def _send_home(self, block: int) -> None:
        if self._discard is not None:
            self._discard(block)
        else:
            self._displaced.add(block)

    def _overflow(self, block: int) -> int:
        """There is no fast room for a birth. Returns the tier it is born in."""
        nbytes, totals = self._blocks[block].nbytes, self._ledger.totals
        name = self._blocks[block].name or f"block {block}"
        if self._emulated:
            if not totals["born_slow"]:
                self._ledger.event(f"{name} was born in slow memory: {format_bytes(nbytes)} had no room")
            totals["born_slow"] += 1
            self._mover.hold_slow(nbytes)
            return 1
        self._mover.force(nbytes)
        sentence = f"{name} was born in fast memory with no room for {format_bytes(nbytes)}: the budget was exceeded"
        if not totals["overflows"]:
            self._warn(f"{sentence}; the report says how often and by how much")
        totals["overflows"] += 1
        self._ledger.event(sentence)
        if self._strict:
            raise TierError(sentence, tier="fast", block=block)
        return 0
