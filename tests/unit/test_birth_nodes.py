"""The memory policies of blocks with untouched pages: whose are put back, when, and how many there may be."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from sentinel.core.errors import NativeError
from sentinel.migration.birth_nodes import MOST_RANGES, BirthNodes
from sentinel.migration.move import Ended, Move
from sentinel.system import numa
from sentinel.tiers.tier import FAST
from tests.builders import MIB, act, make_profile, param
from tests.unit.engine_builders import transient_plan

SLOW = 1
NODES = (5, 7)  # of the fast and of the slow tier
# x is born in fast memory, y in slow memory; of w the plan says so, too, but its pages are in the fast tier's arena.
PROFILE = make_profile([param("w", MIB, [1]), act("x", MIB, 1, 5, [4]), act("y", MIB, 1, 5, [4])], 6)
PLAN = transient_plan(PROFILE, [SLOW, FAST, SLOW], fast_bytes=4 * MIB)
W, X, Y = range(3)
RANGES = {W: [(10, 1), (20, 2)], X: [(30, 3)], Y: [(40, 4)]}


class Stage:
    """BirthNodes over a kernel that keeps what it was told: `bound` are (address, nbytes, node) in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        self.bound: list[tuple[int, int, int]] = []
        self.may_bind: list[bool] = []
        self.refused: set[int] = set()
        monkeypatch.setattr(numa, "bind", self._bind)
        self.births = BirthNodes(PLAN, NODES, ranges, self.may_bind.append)

    def _bind(self, address: int, nbytes: int, node: int) -> None:
        if address in self.refused:
            raise NativeError("mbind", errno.ENOMEM)
        self.bound.append((address, nbytes, node))

    def moved(self, block: int, target: int, *, bound: bool, tier: int | None = None) -> None:
        """A move of `block` has ended; `tier`: in which it is then, if that is not `target`."""
        move = Move(0, 0, block, 1 - target, target, MIB, "evict" if target else "prefetch")
        self.births.moved(Ended(move, "done", target if tier is None else tier, (0, 0), bound=bound))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch, lambda block: RANGES[block])


@pytest.mark.parametrize(("block", "away", "home_node"), [(W, SLOW, 5), (X, SLOW, 5), (Y, FAST, 7)])
def test_as_a_life_ends_all_its_ranges_get_the_policy_of_home_once(
    stage: Stage, block: int, away: int, home_node: int
) -> None:
    stage.moved(block, away, bound=True)
    stage.births.go_home([each for each in (W, X, Y) if each != block])
    assert not stage.bound
    stage.births.go_home((X, W, Y))
    stage.births.go_home((X, W, Y))
    stage.births.all_go_home()
    assert stage.bound == [(address, nbytes, home_node) for address, nbytes in RANGES[block]]


def test_a_block_whose_pages_were_all_touched_keeps_its_policy(stage: Stage) -> None:
    stage.moved(X, SLOW, bound=False)
    stage.moved(Y, FAST, bound=False)
    stage.births.all_go_home()
    assert not stage.bound


def test_a_block_that_is_home_again_has_the_policy_of_home(stage: Stage) -> None:
    """Written in slow memory meanwhile, a new page of it, as after a fork, would else be born there."""
    stage.moved(X, SLOW, bound=True)
    stage.moved(X, FAST, bound=False)
    assert stage.bound == [(30, 3, 5)]


def test_a_block_that_comes_home_has_the_policy_of_home_in_all_ranges(stage: Stage) -> None:
    """The mover may have been refused it for some of them."""
    stage.moved(X, SLOW, bound=True)
    stage.moved(X, FAST, bound=True)
    assert stage.bound == [(30, 3, 5)]
    stage.births.all_go_home()
    assert stage.bound == [(30, 3, 5)]


def test_a_move_that_was_cancelled_or_failed_changes_no_policy_back(stage: Stage) -> None:
    stage.moved(X, SLOW, bound=True)
    stage.moved(X, FAST, bound=False, tier=SLOW)
    assert not stage.bound
    stage.births.go_home((X,))
    assert stage.bound == [(30, 3, 5)]


def test_a_block_of_which_most_stayed_at_home_has_the_policy_of_where_the_rest_went(stage: Stage) -> None:
    stage.moved(X, SLOW, bound=True, tier=FAST)
    stage.births.go_home((X,))
    assert stage.bound == [(30, 3, 5)]


def test_what_the_kernel_refuses_is_tried_again_as_the_next_life_ends(stage: Stage) -> None:
    stage.moved(W, SLOW, bound=True)
    stage.refused = {10}
    stage.births.go_home((W,))
    assert stage.bound == [(20, 2, 5)]
    stage.refused = set()
    stage.births.go_home((W,))
    assert (10, 1, 5) in stage.bound
    stage.bound.clear()
    stage.births.all_go_home()
    assert not stage.bound


def test_another_plan_puts_home_what_lives_on_once_it_comes_home(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.moved(W, SLOW, bound=True)
    stage.moved(X, SLOW, bound=True)
    assert stage.births.give()
    assert stage.bound == [(30, 3, 5)]
    stage.births.all_go_home()
    assert stage.bound == [(30, 3, 5)]
    after = Stage(monkeypatch, lambda block: RANGES[block])
    after.births.take([W])
    after.moved(W, FAST, bound=False)
    assert after.bound == [(10, 1, 5), (20, 2, 5)]
    assert not after.births.give()


def test_there_are_no_more_policies_than_the_kernel_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    half = [(each, 1) for each in range(MOST_RANGES // 2)]
    stage = Stage(monkeypatch, lambda block: half)
    stage.moved(X, SLOW, bound=True)
    stage.moved(X, SLOW, bound=True)  # counts once
    stage.moved(Y, FAST, bound=True)
    stage.births.go_home((Y,))
    assert stage.may_bind == [True, True, True, False, True]
