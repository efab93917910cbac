"""Moves of blocks between tiers: which are under way.

The tier beside fast memory that a block goes to or comes from says what moves it, and the mover does it. Moves that
begin together are one submission. What has ended comes back as values: whoever begins moves keeps the block table and
the recorder up to date from them.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from sentinel.core.errors import NativeError
from sentinel.migration.backoff import Backoff
from sentinel.migration.block_table import BlockTable
from sentinel.migration.move import Ended, Move
from sentinel.migration.mover import Moved, NativeMover, Outcome
from sentinel.migration.mover_order import Order, order_of
from sentinel.tiers.tier import EMULATED, FAST, HeldBlock, Job, Tier

_WORDS = {Outcome.DONE: "done", Outcome.PARTIAL: "partial", Outcome.FAILED: "failed", Outcome.ALREADY: "already there"}


class Begun(NamedTuple):
    """`under_way`: for each move asked for, the one that brings its block where it was to go, None if there is none: it
    may have been under way before. `refused`: what became of those that are not under way."""

    under_way: list[Move | None]
    refused: list[Ended]


class Moves:
    """Of each block at most one move runs, and one is queued behind it. `tiers[FAST]` is None. `table` is read only.

    `ranges`: see JobMemory.
    """

    def __init__(
        self,
        tiers: Sequence[Tier | None],
        mover: NativeMover,
        table: BlockTable,
        ranges: Callable[[int], Sequence[tuple[int, int]]],
    ) -> None:
        self._tiers, self._mover, self._table, self._ranges = tiers, mover, table, ranges
        self._orders: dict[tuple[int, int, int], Order] = {}  # of whole blocks, by block, source and target
        self._by_job: dict[int, Move] = {}
        self._by_block: dict[int, list[Move]] = {}
        self.blocks: Collection[int] = self._by_block
        """The blocks for which something is under way."""
        self._backoff = Backoff()
        self._booked = 0  # the last job that is in the books, or is about to be
        self._told = 0  # jobs that `collect` has seen and nobody forgot
        self._ended = 0  # jobs that were forgotten since they have ended

    # ---- what is under way ------------------------------------------------------------------------------

    def of(self, block: int) -> list[Move]:
        """What is under way for `block`, oldest first."""
        return list(self._by_block.get(block, ()))

    def all(self) -> list[Move]:
        """All that is under way, oldest first."""
        return list(self._by_job.values())

    def under_way(self, move: Move) -> bool:
        """Whether it has not been collected yet."""
        return move.job in self._by_job

    def must_end(self, moves: Iterable[Move]) -> bool:
        """Whether the block of one of them cannot be used where it is."""
        return any(not tier.used_in_place for move in moves if (tier := self._tiers[move.source]) is not None)

    # ---- begin ------------------------------------------------------------------------------------------

    def turn_back(self, moves: Iterable[Move]) -> bool:
        """Cancel what is queued last for their blocks, unless it goes where they go. Whether there was something to
        cancel: then collect before they begin."""
        if not self._by_block:
            return False
        turned = False
        for move in moves:
            pending = self._by_block.get(move.block)
            if pending and pending[-1].target != move.target:
                self._mover.cancel(pending[-1].job)  # gone if it had not started
                turned = True
        return turned

    def begin(self, moves: Iterable[Move]) -> Begun:
        """Begin to move blocks, each of them once, in this order and in one submission; or queue them behind what is
        under way for them.

        A move is refused if its block will not be at the source, is to wait since it failed again and again, or if
        there is no memory for one job more: that is a failed migration like others.
        """
        self._strike_unsubmitted()
        table = self._table
        under_way: list[Move | None] = []
        refused: list[Ended] = []
        going: list[Move] = []
        orders: list[Order] = []
        for move in moves:
            block = move.block
            pending = self._by_block.get(block)
            here = pending[-1].target if pending else table.tier[block]
            if move.target == FAST and here != FAST:
                move.source = here  # it may have found no room in the tier that the plan has it in
            if here != move.source or not table.held[block]:
                there = here == move.target
                under_way.append(pending[-1] if pending and there else None)
                refused.append(Ended(move, "already there" if there else "skipped", here, table.spread(block)))
            elif move.reason != "restore" and self._backoff.holds(block, move.target, move.step):
                under_way.append(None)
                refused.append(Ended(move, "skipped", here, table.spread(block), held_back=True))
            else:
                under_way.append(move)
                going.append(move)
                orders.append(self._order(move, pending[-1].job if pending else 0))
        for failed in self._submit(going, orders):
            refused.append(failed)
            under_way[under_way.index(failed.move)] = None
        return Begun(under_way, refused)

    def look_at(self, move: Move, *, first: bool) -> Begun:
        """Send pages of its block, for which nothing is under way, to where it is, should the kernel have put some
        elsewhere. `first`: they leave fast memory before anything is promoted."""
        self._strike_unsubmitted()
        job = self._beside(move).job(self._held(move.block), move.source, move.target)
        refused = self._submit([move], [order_of(job._replace(first=first and move.target != FAST))])
        return Begun([None if refused else move], refused)

    def _order(self, move: Move, after: int) -> Order:
        """What `move` asks of the mover, once job `after` has ended."""
        block, source, target = move.block, move.source, move.target
        nbytes = self._table.nbytes[block]
        if not after and self._table.bytes_in[source][block] != nbytes:  # it is in parts
            beside, held = self._beside(move), self._held(block)
            if not beside.holds_pages:
                move.nbytes -= held.held[target]  # another plan cut the block otherwise: a part may be there
            return order_of(self._job(held, source, target))
        order = self._orders.get((block, source, target))
        if order is None:
            whole = [nbytes if index == source else 0 for index in range(len(self._tiers))]
            held = HeldBlock(nbytes, whole, functools.partial(self._ranges, block))
            order = self._orders[block, source, target] = order_of(self._job(held, source, target))
        return order.starting_after(after) if after else order

    def _job(self, held: HeldBlock, source: int, target: int) -> Job:
        """What moves it; where a slower tier has no room, to the last one, which has. A block of the last one stays.
        From a slower tier that had no room for it, it comes from the last one."""
        job = self._tier_beside(source, target).job(held, source, target)
        last = len(self._tiers) - 1
        if target == FAST and source != last and job.kind == EMULATED:  # of others the time shows as they move
            there = held._replace(held=[held.nbytes if tier == last else 0 for tier in range(len(self._tiers))])
            return job.else_from(self._tier_beside(last, FAST).job(there, last, FAST))
        if target in (FAST, last):
            return job
        if source == last:
            return job if held.held[FAST] else job.else_stays()  # a part in fast memory has to leave that
        return job.else_to(self._tier_beside(source, last).job(held, source, last))

    def _held(self, block: int) -> HeldBlock:
        table = self._table
        return HeldBlock(table.nbytes[block], table.spread(block), functools.partial(self._ranges, block))

    def _beside(self, move: Move) -> Tier:
        return self._tier_beside(move.source, move.target)

    def _tier_beside(self, source: int, target: int) -> Tier:
        beside = self._tiers[target or source]
        assert beside is not None
        return beside

    def _submit(self, moves: Sequence[Move], orders: Sequence[Order]) -> list[Ended]:
        """Those that the mover had no memory for. They are booked before the call: an interrupt after it loses none."""
        if not moves:
            return []
        first = self._mover.submitted() + 1
        self._booked = first + len(moves) - 1
        for job, move in enumerate(moves, first):
            move.job = job
            self._by_job[job] = move
            self._by_block.setdefault(move.block, []).append(move)
        try:
            self._mover.submit_all(orders)
        except NativeError as refusal:
            if refusal.errno != errno.ENOMEM:
                raise
            self._strike_unsubmitted()
            if len(moves) > 1:  # for one at a time there may be enough
                pairs = zip(moves, orders, strict=True)
                return [failed for move, order in pairs for failed in self._submit([move], [order])]
            return [self._no_memory_for(moves[0], refusal.errno)]
        return []

    def _strike_unsubmitted(self) -> None:
        """Drop from the books what the mover has not got: it refused it, or an interrupt came before the call."""
        submitted = self._mover.submitted()
        if self._booked == submitted:
            return
        for job in [job for job in self._by_job if job > submitted]:
            move = self._by_job[job]
            self._strike(move)
            move.job = 0
        self._booked = submitted

    def _strike(self, move: Move) -> None:
        """Drop it from the books. One that is out of them in part goes wholly."""
        pending = self._by_block.get(move.block, [])
        if move in pending:
            pending.remove(move)
        if not pending:
            self._by_block.pop(move.block, None)
        self._by_job.pop(move.job, None)

    def _no_memory_for(self, move: Move, error: int) -> Ended:
        gives_up = self._backoff.failed(move.block, move.target, move.step)
        here = move.target if move.reason == "stray" else move.source
        return Ended(move, "failed", here, self._table.spread(move.block), error, gives_up=gives_up)

    # ---- end --------------------------------------------------------------------------------------------

    def cancel(self, move: Move) -> bool:
        """Whether it had not started, and now never will."""
        return self._mover.cancel(move.job)

    def wait_for(self, moves: Iterable[Move]) -> None:
        """Until they have ended. One that waits for room that nothing will free is cancelled."""
        for move in moves:
            if not self._mover.wait(move.job):
                self._mover.cancel(move.job)

    def end(self, block: int) -> None:
        """Drop what has not started for `block`, wait for what has."""
        for move in reversed(self.of(block)):
            if not self._mover.cancel(move.job):
                self._mover.wait(move.job)

    def collect(self) -> Sequence[Ended]:
        """What has ended, oldest first, up to 64 of them. A look at a counter if nothing has. Until `forget` it is told
        again: what cuts short whoever notes it loses none."""
        self._strike_unsubmitted()
        if self._mover.ended() == self._ended:
            return ()
        moved = self._mover.results_from(self._ended)
        self._told = len(moved)
        found: list[Ended] = []
        over: set[Move] = set()
        for each in moved:
            move = self._by_job.get(each.job)
            if move is not None:  # else `forget` was cut short
                over.add(move)
                found.append(self._end_of(move, each, over))
        if not found:
            self.forget(())
        return found

    def forget(self, ended: Iterable[Ended]) -> bool:
        """All that `collect` returned last, and is noted now. Whether more has ended meanwhile."""
        for each in ended:
            self._strike(each.move)
        told, self._told = self._told, 0
        self._ended += told
        return self._mover.ended() != self._ended

    def _end_of(self, move: Move, moved: Moved, over: Collection[Move]) -> Ended:
        """`over`: moves that have ended, this one too, and are in the books still."""
        if moved.target != move.target:
            move.target, move.sent_further = moved.target, True
        place = _place(move, moved)
        pending = self._by_block.get(move.block, ())
        queued = [other for other in pending if other not in over] if len(pending) > 1 else ()
        if queued and queued[0].target != place:
            queued[0].source = place  # the block may be in another tier than this move was to leave it in
        outcome = "late" if move.late and moved.outcome is Outcome.DONE else _WORDS.get(moved.outcome, "skipped")
        return Ended(
            move,
            outcome,
            place,
            moved.held[: len(self._tiers)],
            moved.errno,
            moved.moved_bytes,
            moved.start_ns,
            moved.stop_ns,
            queued=queued[-1] if queued else None,
            gives_up=self._gives_up(move, moved.outcome),
            bound=moved.bound,
        )

    def _gives_up(self, move: Move, outcome: Outcome) -> bool:
        """Whether this end is the last of so many failures that the block is held where it is."""
        if move.reason == "stray":
            return False
        if outcome in (Outcome.PARTIAL, Outcome.FAILED):
            return self._backoff.failed(move.block, move.target, move.step)
        if outcome is not Outcome.CANCELLED:
            self._backoff.moved(move.block, move.target)
        return False


def _place(move: Move, moved: Moved) -> int:
    """The tier in which the block of an ended move is: one in parts is where most of it is."""
    if move.reason == "stray":
        return move.target  # it was there before
    if moved.outcome is Outcome.CANCELLED and any(moved.held) and not moved.held[move.source]:
        return max(range(len(moved.held)), key=moved.held.__getitem__)  # what it waited for left the block elsewhere
    arrived = moved.outcome in (Outcome.DONE, Outcome.ALREADY)
    if moved.outcome is Outcome.PARTIAL:
        here = moved.held[move.target]
        arrived = 2 * here >= move.nbytes if move.target == FAST else 2 * here > move.nbytes
    return move.target if arrived else move.source
