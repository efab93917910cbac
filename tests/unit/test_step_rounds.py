"""How many steps are recorded together, as records of fewer did not hold."""

from __future__ import annotations

from sentinel.session.step_rounds import StepRounds


def rounds_of(recorded: list[int]) -> list[int]:
    """How many steps each round had, if after each of them so many were recorded in all."""
    rounds, lengths = StepRounds(), []
    for count in recorded:
        steps = 1
        while not rounds.step_ended():
            steps += 1
        assert rounds.last == steps
        lengths.append(steps)
        rounds.told(count)
    return lengths


def test_one_record_or_one_more_later_leaves_steps_alone() -> None:
    assert rounds_of([0, 0, 1] + [1] * 20 + [2] * 20) == [1] * 43
    assert rounds_of([0] * 9) == [1] * 9


def test_steps_that_take_turns_are_recorded_two_by_two() -> None:
    rounds = StepRounds()
    assert [rounds.step_ended() for _ in range(2)] == [True, True]
    rounds.told(1)
    assert [rounds.step_ended() for _ in range(2)] == [True, True]
    rounds.told(2)
    assert rounds.of_record == 1  # the one of two steps is not made yet
    assert [rounds.step_ended() for _ in range(4)] == [False, True, False, True]
    assert (rounds.of_record, rounds.last) == (1, 2)
    rounds.told(3)
    assert (rounds.of_record, rounds.last) == (2, 2)
    assert rounds_of([0, 0, 1, 1, 2, 2, 3] + [3] * 9) == [1] * 5 + [2] * 11


def test_steps_of_many_shapes_are_alone_again_in_the_end() -> None:
    assert rounds_of(list(range(1, 30))) == [1, 1, 2, 2, 4, 4] + [1] * 23


def test_rounds_that_are_too_long_to_be_recorded_are_given_up() -> None:
    rounds = StepRounds()
    for recorded in (1, 2):
        assert rounds.step_ended()
        rounds.told(recorded, too_long=False)
    assert not rounds.step_ended()
    assert rounds.step_ended()
    rounds.told(2, too_long=True)
    assert [rounds.step_ended() for _ in range(3)] == [True] * 3
    assert rounds.of_record == 1
