"""Promotions that are under way as they are due: counted by the paper's cases, waited for, or left."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sentinel.core.uses import with_uses
from sentinel.migration.agenda import Agenda
from sentinel.migration.due_moves import DueMoves, Late
from sentinel.migration.move import Move
from sentinel.migration.run_recorder import RunRecorder
from tests.builders import MIB, make_profile, param, persistent_plan
from tests.unit.engine_builders import HandClock

# "a" comes to fast memory before layer 1, where it is used, and leaves before layer 4; "b" is used in layer 5 too.
PROFILE = make_profile([param("a", MIB, [1]), param("b", MIB, [1, 5])], 6)
MOVES = [(0, 1, 0, 0, 1), (1, 1, 0, 0, 1), (0, 0, 1, 3, 4)]
PLAN = with_uses(persistent_plan(PROFILE, [1, 1], MOVES, fast_bytes=2 * MIB), PROFILE)
UP_A, UP_B, DOWN_A = range(3)


class Ongoing:
    """Moves none of which ends before it is waited for; `must` not be left."""

    def __init__(self, *, must: bool = False) -> None:
        self.must = must
        self.ended: list[Move] = []
        self.cancelled: list[Move] = []

    def under_way(self, move: Move) -> bool:
        return move not in self.ended

    def must_end(self, moves: Iterable[Move]) -> bool:
        return self.must

    def wait_for(self, moves: Iterable[Move]) -> None:
        self.ended += moves

    def cancel(self, move: Move) -> bool:
        self.cancelled.append(move)
        return True


class Stage:
    def __init__(self, *, waits: bool, must: bool = False) -> None:
        self.moves, self.recorder = Ongoing(must=must), RunRecorder()
        self.due = DueMoves(PLAN, Agenda(PLAN), self.moves, self.recorder, HandClock().clock)  # type: ignore[arg-type]
        self.due._trials.wait = lambda layer: waits  # type: ignore[method-assign]
        self.a, self.b = (Move(0, 0, block, 1, 0, MIB, "prefetch") for block in (0, 1))
        self.due.began((UP_A, UP_B), (self.a, self.b))


def test_what_is_under_way_as_it_is_due_is_late_once() -> None:
    stage = Stage(waits=True)
    assert stage.due.late(1) == [Late(stage.a, used_later=False), Late(stage.b, used_later=True)]
    assert stage.a.late
    assert stage.due.late(1) == []


def test_a_demotion_is_late_but_nobody_waits_for_it() -> None:
    stage = Stage(waits=True)
    down = Move(0, 3, 0, 0, 1, MIB, "evict")
    stage.due.began((UP_B, DOWN_A), (None, down))
    assert stage.due.late(4) == []
    assert down.late


def test_what_has_ended_or_was_for_another_step_is_not_late() -> None:
    stage = Stage(waits=True)
    stage.moves.ended.append(stage.a)
    assert [late.move for late in stage.due.late(1)] == [stage.b]
    stage = Stage(waits=True)
    stage.due.begin_step()
    assert stage.due.late(1) == []


@pytest.mark.parametrize(("waits", "must", "starved"), [(True, False, False), (False, True, True)])
def test_waiting_ends_them(waits: bool, must: bool, starved: bool) -> None:
    stage = Stage(waits=waits, must=must)
    stage.due.wait_or_leave(1, stage.due.late(1), starved=starved)
    assert stage.moves.ended == [stage.a, stage.b]
    assert stage.moves.cancelled == []
    assert (stage.recorder.totals.case2, stage.recorder.totals.case3) == (int(starved), int(not starved))


@pytest.mark.parametrize("starved", [False, True])
def test_left_is_what_is_of_no_use_later_and_what_keeps_others_back(starved: bool) -> None:
    stage = Stage(waits=False)
    assert stage.due.wait_or_leave(1, stage.due.late(1), starved=starved) == 0
    assert stage.moves.ended == []
    assert stage.moves.cancelled == ([stage.a, stage.b] if starved else [stage.a])
