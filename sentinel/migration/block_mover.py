"""Moves blocks, and sees to it that the block table and the run know what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.core.errors import TierError
from sentinel.migration.block_table import BlockTable
from sentinel.migration.clock import Clock
from sentinel.migration.move import Move
from sentinel.migration.moves import Begun, Moves
from sentinel.migration.outcomes import Outcomes
from sentinel.migration.page_audit import Check
from sentinel.migration.residents import Wanted


class BlockMover:
    """Joins `moves`, which know what is under way, with `table` and `outcomes`. `clock`: what waits are timed by."""

    def __init__(self, moves: Moves, table: BlockTable, outcomes: Outcomes, clock: Clock) -> None:
        self._moves, self._table, self._outcomes, self._now_ns = moves, table, outcomes, clock.now_ns

    def begin(self, moves: Sequence[Move]) -> Begun:
        """Begin to move blocks. Whoever asks tells the outcomes what was refused, once the rest is noted."""
        if self._moves.turn_back(moves):
            self.collect()
        begun = self._moves.begin(moves)
        for asked, move in zip(moves, begun.under_way, strict=True):
            if move is asked:  # another one was under way before
                self._table.serve(move.block, move.served_by)
        return begun

    def send(self, wanted: Iterable[Wanted], step: int) -> None:
        """Begin to move blocks to where they are wanted as a step begins, which no migration of the plan does."""
        nbytes = self._table.nbytes
        moves = [
            Move(step, 0, each.block, each.source, each.target, nbytes[each.block], each.reason) for each in wanted
        ]
        self._outcomes.refused(self.begin(moves).refused)

    def look_at(self, checks: Iterable[Check], step: int, layer: int) -> None:
        """Send pages of blocks to where the blocks are, as `layer` begins."""
        for block, source, target, first in checks:
            move = Move(step, layer, block, source, target, self._table.nbytes[block], "stray")
            self._outcomes.refused(self._moves.look_at(move, first=first).refused)

    def collect(self) -> None:
        """The table and the run learn what has ended."""
        ended = self._moves.collect()
        while ended:
            try:
                self._outcomes.ended(ended)
            except TierError:  # the job is strict; all of them are noted
                self._moves.forget(ended)
                raise
            ended = self._moves.collect() if self._moves.forget(ended) else ()

    def finish(self) -> None:
        """Wait for all that is under way."""
        self._moves.wait_for(self._moves.all())
        self.collect()

    def cancel(self) -> None:
        """Drop what has not started, the latest first, and wait for the rest."""
        for move in reversed(self._moves.all()):
            self._moves.cancel(move)
        self.finish()

    def end(self, blocks: Iterable[int]) -> int:
        """Drop what has not started for these blocks, and wait for what has. Returns the ns waited."""
        began = 0
        for block in blocks:
            if block in self._moves.blocks:
                began = began or self._now_ns()
                self._moves.end(block)
        if not began:
            return 0
        self.collect()
        return self._now_ns() - began
