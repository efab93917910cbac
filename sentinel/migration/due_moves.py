"""Planned migrations from their start until they are due, and what becomes of promotions that come late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sentinel.core.plan import Plan
from sentinel.migration.agenda import Agenda
from sentinel.migration.clock import Clock
from sentinel.migration.move import Move
from sentinel.migration.moves import Moves
from sentinel.migration.run_recorder import RunRecorder
from sentinel.migration.trials import Trials
from sentinel.tiers.tier import FAST


class Late(NamedTuple):
    """A promotion under way as it is due. `used_later`: its block is used after that layer too."""

    move: Move
    used_later: bool


class DueMoves:
    """Follows `moves` that carry out migrations of `plan`. `clock`: what waits are timed by."""

    def __init__(self, plan: Plan, agenda: Agenda, moves: Moves, recorder: RunRecorder, clock: Clock) -> None:
        self._agenda, self._moves, self._recorder = agenda, moves, recorder
        self._now_ns = clock.now_ns
        self._trials = Trials({layer: str(plan.layers[layer]) for layer in agenda.boundaries}, recorder.trial)
        self._by_migration: dict[int, Move] = {}

    def began(self, migrations: Sequence[int], moves: Sequence[Move | None]) -> None:
        """These moves are under way for these migrations of the plan, None for one that is not."""
        for migration, move in zip(migrations, moves, strict=True):
            if move is not None:
                self._by_migration[migration] = move

    def begin_step(self) -> None:
        """A step begins with blocks elsewhere than planned: what is under way is for none of its migrations."""
        self._by_migration.clear()

    def enter(self, layer: int, now_ns: int) -> None:
        """`layer`, before which promotions are due, begins."""
        self._trials.enter(layer, now_ns)

    def abandon(self) -> None:
        """The step went out of step."""
        self._trials.abandon()

    def late(self, layer: int) -> list[Late]:
        """Promotions that are due before `layer` and still under way. If none of those due are, that is case 1."""
        found = []
        for index in self._agenda.due[layer]:
            move = self._by_migration.pop(index, None)
            if move is not None and self._moves.under_way(move):
                move.late = True
                if move.target == FAST:
                    found.append(Late(move, self._agenda.used_later[index]))
        if self._agenda.expects[layer] and not found:
            self._recorder.totals.case1 += 1
        return found

    def wait_or_leave(self, layer: int, late: list[Late], *, starved: bool) -> int:
        """Wait for late promotions or go on without, as the trials say. Returns the ns waited. Collect moves then.

        `starved`: a promotion waits for room.
        """
        self._recorder.totals.case2 += starved
        self._recorder.totals.case3 += not starved
        moves = [move for move, _ in late]
        if self._moves.must_end(moves) or self._trials.wait(layer):
            stall = self._await(moves)
            self._trials.waited(stall)
            return stall
        # What is used later too may still arrive for that. But one that finds no room keeps all others back.
        for move, used_later in late:
            if starved or not used_later:
                self._moves.cancel(move)
        return 0

    def _await(self, late: list[Move]) -> int:
        began = self._now_ns()
        self._moves.wait_for(late)
        return self._now_ns() - began
