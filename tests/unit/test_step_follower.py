"""Where in its step a job is, from a list of ticks alone: in steps that go as learned and in steps that do not."""

from __future__ import annotations

import pytest

from sentinel.core.errors import UsageError
from sentinel.core.layer_cycle import MOST_TICKS, ROUNDS, LayerCycle, Tick
from sentinel.core.step_follower import Position, StepFollower
from sentinel.core.trace import LayerId

Ticks = list[Tick]
FORWARD: Ticks = [("a", "forward"), ("b", "forward")]
BACKWARD: Ticks = [("loss", "backward"), ("b", "backward"), ("a", "backward")]
OPTIMIZER: Ticks = [("optimizer", "optimizer")] * 3
STEP = [*FORWARD, *BACKWARD, *OPTIMIZER]


def recorded(*parts, boundary=True):
    follower = StepFollower()
    for name, phase in (tick for part in parts for tick in part):
        follower.tick((name, phase))
    if boundary:
        follower.boundary()
    follower.learn()
    return follower


def follow(follower, part, boundary=False):
    layers = [follower.tick((name, phase)).layer for name, phase in part]
    if boundary:
        follower.boundary()
    return layers


def around(length):
    return [*range(1, length), 0]


@pytest.mark.parametrize("boundary", [True, False])
def test_steps_as_learned_go_round_the_cycle(boundary):
    follower = recorded(STEP, boundary=boundary)
    for _ in range(5):
        assert follow(follower, STEP, boundary) == around(8)
        assert follower.in_step
        assert follower.layer == 0


def test_unnamed_ticks_are_told_by_their_number():
    follower = recorded([("", "")] * 7, boundary=False)
    assert follower.layers[3] == LayerId("", 3)
    for _ in range(3):
        assert follow(follower, [("", "")] * 7) == around(7)


def test_nothing_ticked_is_an_error_that_says_what_to_call():
    with pytest.raises(UsageError, match="annotate"):
        StepFollower().learn()


def test_a_missing_tick_shifts_no_other_and_the_next_step_is_in_step():
    follower = recorded(STEP)
    skipped = [("a", "forward"), *STEP[2:]]
    assert follow(follower, skipped, True) == [1] + [None] * 6
    assert not follower.in_step
    assert follow(follower, STEP, True) == around(8)


def test_out_of_step_the_layer_is_still_known_by_identity():
    follower = recorded(STEP)
    seen = []
    for name, phase in STEP[:1] + STEP[2:]:
        follower.tick((name, phase))
        seen.append(follower.layer)
    assert seen == [1, 3, 4, 5, 6, 7, 0]


def test_an_unexpected_tick_shifts_no_other():
    follower = recorded(STEP)
    assert follow(follower, [*FORWARD, ("expert", "forward")]) == [1, 2, None]
    assert follower.layer is None
    follow(follower, STEP[2:], True)
    assert follow(follower, STEP, True) == around(8)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_step_cut_short_anywhere_leaves_the_next_one_in_step(cut):
    follower = recorded(STEP)
    follow(follower, STEP[:cut])
    assert follow(follower, STEP, True) == around(8)
    assert follow(follower, STEP, True) == around(8)


def test_an_extra_forward_begins_a_step_and_the_real_one_begins_another():
    follower = recorded(STEP)
    assert follow(follower, FORWARD) == [1, 2]
    assert follow(follower, STEP, True) == around(8)


def test_an_optimizer_that_does_not_step_shifts_nothing():
    follower = recorded(STEP)
    for _ in range(3):
        assert follow(follower, [*FORWARD, *BACKWARD]) == [1, 2, 3, 4, 5]
    assert follow(follower, STEP, True) == around(8)


MICRO = [*FORWARD, *BACKWARD]


def test_gradient_accumulation_is_one_cycle_of_several_micro_steps():
    follower = recorded(MICRO, MICRO, MICRO, OPTIMIZER)
    assert follower.layers[5] == LayerId("a", 1, "forward")
    for _ in range(3):
        assert follow(follower, [*MICRO * 3, *OPTIMIZER], True) == around(18)


def test_a_micro_step_cut_short_costs_one_step_at_most():
    follower = recorded(MICRO, MICRO, MICRO, OPTIMIZER)
    follow(follower, [*MICRO, *FORWARD])
    assert not all(layer is not None for layer in follow(follower, [*MICRO * 3, *OPTIMIZER], True))
    assert follow(follower, [*MICRO * 3, *OPTIMIZER], True) == around(18)


def test_an_accumulation_whose_optimizer_is_skipped_restarts_at_its_first_tick():
    follower = recorded(MICRO, MICRO, OPTIMIZER)
    assert follow(follower, MICRO * 2) == list(range(1, 11))
    assert follow(follower, [*MICRO * 2, *OPTIMIZER], True) == around(13)


GENERATOR: Ticks = [("1:a", "forward"), ("1:a", "backward"), *[("1:optimizer", "optimizer")] * 2]


def test_two_optimizers_at_different_points_of_a_step():
    follower = StepFollower()
    for part in (STEP, GENERATOR):
        for name, phase in part:
            follower.tick((name, phase))
        follower.boundary()
    follower.learn()
    for _ in range(3):
        assert follow(follower, STEP, True) + follow(follower, GENERATOR, True) == around(12)


def test_an_optimizer_of_every_second_step():
    follower = StepFollower()
    for part in (STEP, GENERATOR):
        for name, phase in part:
            follower.tick((name, phase))
        follower.boundary()
    follower.learn()
    assert follow(follower, STEP, True) == list(range(1, 9))  # without the second
    assert follow(follower, STEP, True) + follow(follower, GENERATOR, True) == around(12)


def test_an_optimizer_that_was_not_profiled_costs_no_later_step():
    follower = recorded(STEP)
    assert follow(follower, STEP, True) == around(8)
    assert follow(follower, GENERATOR) == [None] * 4
    assert follow(follower, STEP, True) == around(8)


def test_unnamed_ticks_cut_short_are_set_right_by_the_optimizer():
    """add_layer() without names: only the optimizer's boundary tells that a step was cut short."""
    follower = StepFollower()
    for index in range(7):
        if index == 6:
            follower.boundary()
        follower.tick(("", ""))
    follower.learn()

    def step():
        layers = follow(follower, [("", "")] * 6)
        follower.boundary()
        return layers + follow(follower, [("", "")])

    assert step() == around(7)
    follow(follower, [("", "")] * 4)  # an exception here
    step()
    assert step() == around(7)


def test_named_ticks_cut_short_are_set_right_without_an_optimizer():
    step = [*[("layer", "")] * 5, ("backward", ""), ("optimizer", "")]
    follower = recorded(step, boundary=False)
    follow(follower, step[:3])
    follow(follower, step)
    assert follow(follower, step) == around(7)


def test_validation_is_told_from_training_by_grad_mode():
    follower = StepFollower()
    assert follower.accepts(grad=True)
    assert not follower.accepts(grad=False)
    inference = StepFollower()
    assert inference.accepts(grad=False)
    assert inference.accepts(grad=True)


def test_a_saved_cycle_is_followed_at_once():
    cycle = recorded(STEP).layers
    follower = StepFollower()
    follower.follow_saved(cycle)
    assert follower.layers == cycle
    assert follow(follower, STEP) == around(8)


def test_a_cycle_of_one_layer():
    follower = recorded([("x", "")], boundary=False)
    assert follow(follower, [("x", "")] * 3) == [0, 0, 0]


def test_a_profiled_step_that_never_ends_is_refused_by_its_layers_where_no_optimizer_steps() -> None:
    follower = StepFollower()
    for _ in range(MOST_TICKS):
        follower.tick(("", ""))
    follower.require_end(64)
    follower.tick(("", ""))
    with pytest.raises(UsageError, match=r"gone on for 65537 layers; call sentinel\.end_profile\(\)"):
        follower.require_end(64)
    follower.boundary()  # with one, a step may have more layers: sixty critics to a generator may be meant
    follower.tick(("", ""))
    follower.require_end(64)
    follower.learn()
    follower.require_end(0)


# ---- how steps end, and who follows them


def ticks(names: str) -> tuple[Tick, ...]:
    return tuple((name, "") for name in names)


def learned(names: str) -> StepFollower:
    """Of a job whose profiled step ticked so; an optimizer stepped at its end."""
    follower = StepFollower()
    assert [follower.tick(tick) for tick in ticks(names)] == [Position(i) for i in range(1, len(names) + 1)]
    follower.boundary()
    follower.learn()
    return follower


WHOLE, CUT_SHORT, NONE = Position(0, "whole"), Position(1, "cut short"), Position(None)


@pytest.mark.parametrize(
    ("ticked", "said"),
    [
        ("abcab", [Position(1), Position(2), WHOLE, Position(1), Position(2)]),
        ("aca", [Position(1), NONE, CUT_SHORT]),  # one left out
        ("aba", [Position(1), Position(2), CUT_SHORT]),  # cut short in step
        ("abcxabc", [Position(1), Position(2), WHOLE, NONE, CUT_SHORT, Position(2), WHOLE]),  # between two steps
        ("ba", [NONE, CUT_SHORT]),
    ],
)
def test_a_tick_is_answered_with_how_the_step_that_is_over_ended(ticked: str, said: list[Position]) -> None:
    follower = learned("abc")
    assert [follower.tick(tick) for tick in ticks(ticked)] == said


def test_in_a_cycle_of_one_layer_each_tick_ends_a_step() -> None:
    follower = learned("a")
    assert [follower.tick(tick) for tick in ticks("axa")] == [WHOLE, NONE, Position(0, "cut short")]


def test_a_plan_can_be_taken_in_for_all_of_a_step_while_its_first_layer_is_under_way() -> None:
    follower = learned("abc")
    told = [follower.in_first_layer]
    for tick in ticks("abcxc"):
        follower.tick(tick)
        told.append(follower.in_first_layer)
    assert told == [True, False, False, True, False, False]
    assert follower.layer == 0  # but not in step


# ---- other cycles


def test_a_missing_tick_puts_the_job_out_of_step() -> None:
    follower = learned("abc")
    assert [follower.tick(tick).layer for tick in ticks("abc" + "ac" + "ab")] == [1, 2, 0, 1, None, 1, 2]
    assert follower.in_step
    assert follower.layer == 2
    assert follower.second_layer == 1


def test_a_change_that_gets_no_plan_leaves_the_cycle_before() -> None:
    follower = learned("abc")
    follower.detect_changes()
    found: LayerCycle | None = None
    for _ in range(ROUNDS):
        for tick in ticks("ac"):
            follower.tick(tick)
            assert follower.changed_by(tick) is None
        found = follower.boundary() or found
    assert found == LayerCycle(ticks("ac"), (2,))
    follower.follow_change(found)
    assert [layer.name for layer in follower.layers] == ["a", "c"]
    follower.follow_change(LayerCycle(ticks("ab"), (2,)))  # that did not come, another did
    follower.undo_change()
    assert [layer.name for layer in follower.layers] == ["a", "b", "c"]
    assert (follower.layer, follower.in_step, follower.detecting, follower.n_changes) == (None, False, False, 1)
    assert [follower.tick(tick).layer for tick in ticks("abc")] == [1, 2, 0]


def test_a_change_that_is_kept_is_followed_from_its_first_tick_on() -> None:
    follower = learned("abc")
    follower.follow_change(LayerCycle(ticks("ac"), (2,)))
    assert not follower.in_step
    assert [follower.tick(tick).layer for tick in ticks("ac")] == [1, 0]
    follower.keep_change()
    assert [layer.name for layer in follower.layers] == ["a", "c"]
    assert follower.n_changes == 1


def test_a_cycle_that_went_on_is_no_change() -> None:
    follower = learned("abc")
    follower.detect_changes()
    follower.keep_change()
    assert (follower.detecting, follower.n_changes) == (False, 0)


def test_a_step_that_was_recorded_is_followed_unless_it_is_already() -> None:
    follower = learned("abc")
    follower.follow_recorded(LayerCycle(ticks("abc"), (1,)))
    assert follower.cycle.boundaries == (3,)
    follower.follow_recorded(LayerCycle(ticks("ac"), (2,)))
    assert follower.cycle.boundaries == (2,)
    assert follower.layer == 1  # its first tick had come


def test_ticks_that_are_new_each_time_are_not_kept() -> None:
    follower = learned("abc")
    for number in range(1000):
        assert follower.tick((f"only once {number}", "forward")).layer is None
    assert set(follower._counts) <= set(ticks("abc"))
    assert [follower.tick(tick).layer for tick in ticks("abc")] == [1, 2, 0]
