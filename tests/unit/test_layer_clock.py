"""Which layer begins with a tick, in steps that go as learned and in steps that do not."""

from __future__ import annotations

import pytest

from sentinel.core.errors import UsageError
from sentinel.core.trace import LayerId, Phase
from sentinel.profiler.layers import LayerClock

Ticks = list[tuple[str, Phase]]
FORWARD: Ticks = [("a", "forward"), ("b", "forward")]
BACKWARD: Ticks = [("loss", "backward"), ("b", "backward"), ("a", "backward")]
OPTIMIZER: Ticks = [("optimizer", "optimizer")] * 3
STEP = [*FORWARD, *BACKWARD, *OPTIMIZER]


def recorded(*parts, boundary=True):
    clock = LayerClock()
    for name, phase in (tick for part in parts for tick in part):
        clock.identify(name, phase)
    if boundary:
        clock.boundary()
    clock.learn()
    return clock


def follow(clock, part, boundary=False):
    layers = [clock.advance(clock.identify(name, phase)) for name, phase in part]
    if boundary:
        clock.boundary()
    return layers


def around(length):
    return [*range(1, length), 0]


@pytest.mark.parametrize("boundary", [True, False])
def test_steps_as_learned_go_round_the_ring(boundary):
    clock = recorded(STEP, boundary=boundary)
    for _ in range(5):
        assert follow(clock, STEP, boundary) == around(8)
        assert clock.in_step
        assert clock.layer == 0


def test_unnamed_ticks_are_told_by_their_number():
    clock = recorded([("", "")] * 7, boundary=False)
    assert clock.ring[3] == LayerId("", 3)
    for _ in range(3):
        assert follow(clock, [("", "")] * 7) == around(7)


def test_nothing_ticked_is_an_error_that_says_what_to_call():
    with pytest.raises(UsageError, match="annotate"):
        LayerClock().learn()


def test_a_missing_tick_shifts_no_other_and_the_next_step_is_in_step():
    clock = recorded(STEP)
    skipped = [("a", "forward"), *STEP[2:]]
    assert follow(clock, skipped, True) == [1] + [None] * 6
    assert not clock.in_step
    assert follow(clock, STEP, True) == around(8)


def test_out_of_step_the_layer_is_still_known_by_identity():
    clock = recorded(STEP)
    seen = []
    for name, phase in STEP[:1] + STEP[2:]:
        clock.advance(clock.identify(name, phase))
        seen.append(clock.layer)
    assert seen == [1, 3, 4, 5, 6, 7, 0]


def test_an_unexpected_tick_shifts_no_other():
    clock = recorded(STEP)
    assert follow(clock, [*FORWARD, ("expert", "forward")]) == [1, 2, None]
    assert clock.layer is None
    follow(clock, STEP[2:], True)
    assert follow(clock, STEP, True) == around(8)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_step_cut_short_anywhere_leaves_the_next_one_in_step(cut):
    clock = recorded(STEP)
    follow(clock, STEP[:cut])
    assert follow(clock, STEP, True) == around(8)
    assert follow(clock, STEP, True) == around(8)


def test_an_extra_forward_begins_a_step_and_the_real_one_begins_another():
    clock = recorded(STEP)
    assert follow(clock, FORWARD) == [1, 2]
    assert follow(clock, STEP, True) == around(8)


def test_an_optimizer_that_does_not_step_shifts_nothing():
    clock = recorded(STEP)
    for _ in range(3):
        assert follow(clock, [*FORWARD, *BACKWARD]) == [1, 2, 3, 4, 5]
    assert follow(clock, STEP, True) == around(8)


MICRO = [*FORWARD, *BACKWARD]


def test_gradient_accumulation_is_one_ring_of_several_micro_steps():
    clock = recorded(MICRO, MICRO, MICRO, OPTIMIZER)
    assert clock.ring[5] == LayerId("a", 1, "forward")
    for _ in range(3):
        assert follow(clock, [*MICRO * 3, *OPTIMIZER], True) == around(18)


def test_a_micro_step_cut_short_costs_one_step_at_most():
    clock = recorded(MICRO, MICRO, MICRO, OPTIMIZER)
    follow(clock, [*MICRO, *FORWARD])
    assert not all(layer is not None for layer in follow(clock, [*MICRO * 3, *OPTIMIZER], True))
    assert follow(clock, [*MICRO * 3, *OPTIMIZER], True) == around(18)


def test_an_accumulation_whose_optimizer_is_skipped_restarts_at_its_first_tick():
    clock = recorded(MICRO, MICRO, OPTIMIZER)
    assert follow(clock, MICRO * 2) == list(range(1, 11))
    assert follow(clock, [*MICRO * 2, *OPTIMIZER], True) == around(13)


GENERATOR: Ticks = [("1:a", "forward"), ("1:a", "backward"), *[("1:optimizer", "optimizer")] * 2]


def test_two_optimizers_at_different_points_of_a_step():
    clock = LayerClock()
    for part in (STEP, GENERATOR):
        for name, phase in part:
            clock.identify(name, phase)
        clock.boundary()
    clock.learn()
    for _ in range(3):
        assert follow(clock, STEP, True) + follow(clock, GENERATOR, True) == around(12)


def test_an_optimizer_of_every_second_step():
    clock = LayerClock()
    for part in (STEP, GENERATOR):
        for name, phase in part:
            clock.identify(name, phase)
        clock.boundary()
    clock.learn()
    assert follow(clock, STEP, True) == list(range(1, 9))  # without the second
    assert follow(clock, STEP, True) + follow(clock, GENERATOR, True) == around(12)


def test_an_optimizer_that_was_not_profiled_costs_no_later_step():
    clock = recorded(STEP)
    assert follow(clock, STEP, True) == around(8)
    assert follow(clock, GENERATOR) == [None] * 4
    assert follow(clock, STEP, True) == around(8)


def test_unnamed_ticks_cut_short_are_set_right_by_the_optimizer():
    """add_layer() without names: only the optimizer's boundary tells that a step was cut short."""
    clock = LayerClock()
    for index in range(7):
        if index == 6:
            clock.boundary()
        clock.identify("")
    clock.learn()

    def step():
        layers = follow(clock, [("", "")] * 6)
        clock.boundary()
        return layers + follow(clock, [("", "")])

    assert step() == around(7)
    follow(clock, [("", "")] * 4)  # an exception here
    step()
    assert step() == around(7)


def test_named_ticks_cut_short_are_set_right_without_an_optimizer():
    step = [*[("layer", "")] * 5, ("backward", ""), ("optimizer", "")]
    clock = recorded(step, boundary=False)
    follow(clock, step[:3])
    follow(clock, step)
    assert follow(clock, step) == around(7)


def test_validation_is_told_from_training_by_grad_mode():
    clock = LayerClock()
    assert clock.accepts(grad=True)
    assert not clock.accepts(grad=False)
    inference = LayerClock()
    assert inference.accepts(grad=False)
    assert inference.accepts(grad=True)


def test_a_saved_ring_is_followed_at_once():
    ring = recorded(STEP).ring
    clock = LayerClock(ring)
    assert not clock.recording
    assert follow(clock, STEP) == around(8)


def test_a_ring_of_one_layer():
    clock = recorded([("x", "")], boundary=False)
    assert follow(clock, [("x", "")] * 3) == [0, 0, 0]


def test_recording_anew_forgets_the_ring():
    clock = recorded(STEP)
    follow(clock, STEP)
    clock.record()
    assert clock.recording
    follow_names = [clock.identify(name, phase) for name, phase in FORWARD]
    assert clock.learn() == tuple(follow_names)
    assert follow(clock, FORWARD) == [1, 0]
