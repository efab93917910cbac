"""Migrations on their way: submitted, and what each does to its block when it ends."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sentinel.core.errors import NativeError, TierError
from sentinel.core.plan import Block, Reason
from sentinel.core.run import OUTCOMES, REASONS
from sentinel.migration.block_table import BlockTable
from sentinel.migration.ledger import Ledger
from sentinel.migration.mover import Moved, NativeMover, Outcome
from sentinel.migration.patience import FAILURES, HOLD_STEPS, Patience
from sentinel.tiers.tier import FAST, HeldBlock, Tier

Why = Reason | Literal["stray"]


@dataclass(slots=True, eq=False)
class Flight:
    """One migration under way. `late`: it was due before a layer that has begun."""

    job: int
    step: int
    layer: int
    block: int
    source: int
    target: int
    nbytes: int
    reason: Why
    late: bool = False


class Flights:
    """Submits migrations and books their ends: block by block, at most one running and one queued behind it.

    A failed move leaves bytes where they are: `warn` hears of the first, the ledger of all; `strict` raises
    TierError instead, once the books are right. A block that fails again and again is left alone for a while.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        mover: NativeMover,
        tiers: Sequence[Tier | None],
        table: BlockTable,
        ledger: Ledger,
        ranges: Callable[[int], list[tuple[int, int]]],
        warn: Callable[[str], None],
        strict: bool,
    ) -> None:
        self._blocks, self._mover, self._tiers = blocks, mover, tiers
        self._table, self._ledger = table, ledger
        self._ranges, self._warn, self._strict = ranges, warn, strict
        self._by_job: dict[int, Flight] = {}
        self._by_block: dict[int, list[Flight]] = {}
        self._patience = Patience()
        self._strays: list[tuple[int, int, int, int]] = []
        self._seen = 0
        self._warned = False
        self.began_ns = 0

    def submit(self, block: int, source: int, target: int, reason: Reason, step: int, layer: int) -> Flight | None:
        """Begin to move `block`. None if it is not (or not to be) at `source`, or is under way to `target` already, or
        there is no memory for one job more: that is a failed migration like others."""
        flight = Flight(0, step, layer, block, source, target, self._blocks[block].nbytes, reason)
        pending = self._by_block.get(block)
        if pending and pending[-1].target != target:
            self._mover.cancel(pending[-1].job)  # gone if it had not started
            self.collect()
            pending = self._by_block.get(block)
        here = pending[-1].target if pending else self._table.tier[block]
        if here != source or not self._table.held[block]:
            self._book(flight, 0, 0, 0, "already there" if here == target else "skipped", 0)
            return pending[-1] if pending and here == target else None
        if self._patience.holds(block, target, step) and reason != "restore":
            self._book(flight, 0, 0, 0, "skipped", 0)
            self._ledger.totals.held_back += 1
            return None
        away = self._tiers[target or source]
        assert away is not None
        after, spread = 0, self._table.spread(block)
        if pending:
            after, spread = pending[-1].job, self._table.whole_in(block, here)
        held = HeldBlock(block, flight.nbytes, spread, lambda: self._ranges(block))
        try:
            flight.job = away.recall(held, after) if target == FAST else away.admit(held, after, source=source)
        except NativeError as refusal:
            self._refused(flight, refusal)
            return None
        if away.spec.kind == "emulated":  # of a block that another plan had cut otherwise, a part may be there
            flight.nbytes -= spread[target]
        self._by_job[flight.job] = flight
        self._by_block.setdefault(block, []).append(flight)
        self._table.serve(block, max(source, target))
        return flight

    def sweep(self, block: int, step: int, layer: int, *, first: bool = True) -> None:
        """Send the pages of `block`, which is not under way, to where it is, should the kernel have put some elsewhere.

        `first`: they leave fast memory before anything is promoted. See `take_strays`.
        """
        here, home = self._table.tier[block], self._blocks[block].tier
        away = self._tiers[max(here, home, 1)]
        assert away is not None
        spec = self._blocks[block]
        held = HeldBlock(block, spec.nbytes, self._table.spread(block), lambda: self._ranges(block))
        source = 0 if here else max(home, 1)
        flight = Flight(0, step, layer, block, source, here, spec.nbytes, "stray")
        try:
            flight.job = away.recall(held) if here == 0 else away.admit(held, first=first)
        except NativeError as refusal:
            self._refused(flight, refusal)
            return
        self._by_job[flight.job] = flight
        self._by_block.setdefault(block, []).append(flight)

    def take_strays(self) -> list[tuple[int, int, int, int]]:
        """(block, bytes demoted again, bytes promoted again, bytes that stayed) of each that strayed since the last
        call."""
        found, self._strays = self._strays, []
        return found

    def of(self, block: int) -> list[Flight]:
        """What is under way for `block`, oldest first."""
        return list(self._by_block.get(block, ()))

    def all(self) -> list[Flight]:
        """All that is under way, oldest first."""
        return list(self._by_job.values())

    def under_way(self, flight: Flight) -> bool:
        """Whether it has not been booked yet."""
        return flight.job in self._by_job

    def end(self, block: int) -> None:
        """Drop what has not started for `block`, wait for what has."""
        for flight in reversed(self.of(block)):
            if not self._mover.cancel(flight.job):
                self._mover.wait(flight.job)
        self.collect()

    def collect(self) -> None:
        """Book all migrations that have ended. A look at a counter if there is none."""
        ended = self._mover.ended()
        if ended == self._seen:
            return
        failure = None
        for moved in self._mover.results():
            self._seen += 1
            failure = self._land(moved) or failure
        if failure is not None and self._strict:
            raise failure

    def _land(self, moved: Moved) -> TierError | None:
        flight = self._by_job.pop(moved.job, None)
        if flight is None:  # an interrupt came between its submission and these books
            return None
        pending = self._by_block[flight.block]
        pending.remove(flight)
        if not pending:
            del self._by_block[flight.block]
        before = self._table.fast_bytes[flight.block]
        self._table.put(flight.block, self._place(flight, moved), moved.held[: len(self._tiers)])
        if pending:
            self._table.serve(flight.block, max(pending[-1].source, pending[-1].target))
        if flight.reason == "stray":
            self._book_stray(flight, moved, before)
            return None
        self._book(flight, moved.moved_bytes, moved.start_ns, moved.stop_ns, self._outcome(flight, moved), moved.errno)
        if moved.outcome in (Outcome.PARTIAL, Outcome.FAILED):
            return self._failed(flight, moved)
        if moved.outcome is not Outcome.CANCELLED:
            self._patience.moved(flight.block, flight.target)
        return None

    @staticmethod
    def _place(flight: Flight, moved: Moved) -> int:
        """The tier in which the block of an ended flight is: one in parts is where most of it is."""
        if flight.reason == "stray":
            return flight.target  # it was there before
        arrived = moved.outcome in (Outcome.DONE, Outcome.ALREADY)
        if moved.outcome is Outcome.PARTIAL:
            here = moved.held[flight.target]
            arrived = 2 * here >= flight.nbytes if flight.target == FAST else 2 * here > flight.nbytes
        return flight.target if arrived else flight.source

    def _book_stray(self, flight: Flight, moved: Moved, before: int) -> None:
        """Book a look that found pages elsewhere; `before`: fast bytes of the block as far as was known."""
        stayed = max(moved.fast_bytes - before if flight.target else before - moved.fast_bytes, 0)
        self._ledger.totals.swept += 1
        if not moved.moved_bytes and not stayed:
            return  # all was where it belongs: no migration
        flight.nbytes = moved.moved_bytes + stayed
        self._book(flight, moved.moved_bytes, moved.start_ns, moved.stop_ns, self._outcome(flight, moved), moved.errno)
        down, up = (moved.moved_bytes, 0) if flight.target else (0, moved.moved_bytes)
        self._strays.append((flight.block, down, up, stayed))

    @staticmethod
    def _outcome(flight: Flight, moved: Moved) -> str:
        if moved.outcome is Outcome.DONE:
            return "late" if flight.late else "done"
        names = {Outcome.PARTIAL: "partial", Outcome.FAILED: "failed", Outcome.ALREADY: "already there"}
        return names.get(moved.outcome, "skipped")

    def _book(self, flight: Flight, moved_bytes: int, start_ns: int, stop_ns: int, outcome: str, errno: int) -> None:
        start = start_ns - self.began_ns if start_ns else 0
        stop = stop_ns - self.began_ns if stop_ns else 0
        where = (flight.step, flight.layer, flight.block, flight.source, flight.target, flight.nbytes)
        why = (OUTCOMES.index(outcome), REASONS.index(flight.reason), errno)
        self._ledger.migration((*where, moved_bytes, start, stop, *why), outcome)

    def _refused(self, flight: Flight, refusal: NativeError) -> None:
        """Book a migration that the mover had no memory to take on; whatever else it says is no matter of one move."""
        if refusal.errno != errno.ENOMEM:
            raise refusal
        self._book(flight, 0, 0, 0, "failed", refusal.errno)
        spread = self._table.spread(flight.block)
        error = self._failed(flight, Moved(0, 0, 0, 0, spread, Outcome.FAILED, refusal.errno))
        if self._strict:
            raise error

    def _failed(self, flight: Flight, moved: Moved) -> TierError:
        tier = self._tiers[max(flight.source, flight.target)]
        assert tier is not None
        name = self._blocks[flight.block].name or f"block {flight.block}"
        way = "from" if flight.target == 0 else "to"
        error = TierError(
            f"moving {name} ({flight.nbytes} bytes) {way} it left {self._stayed(flight, moved)} bytes where they were",
            tier=tier.spec.name,
            block=flight.block,
            errno=moved.errno,
        )
        self._ledger.event(str(error))
        if self._patience.failed(flight.block, flight.target, flight.step):
            self._ledger.event(f"{name} failed {FAILURES} times: it is held where it is for {HOLD_STEPS} steps")
        if not self._warned and not self._strict:
            self._warned = True
            self._warn(f"{error}; training goes on, the report lists all that failed")
        return error

    @staticmethod
    def _stayed(flight: Flight, moved: Moved) -> int:
        return sum(moved.held) - moved.held[flight.target]
