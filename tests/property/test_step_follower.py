"""Whatever ticks in a step, the steps after it are in step again, and it is told where they are and how they ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.layer_cycle import Tick
from sentinel.core.step_follower import Position, StepFollower
from sentinel.core.trace import LayerId

Ticks = list[Tick]

blocks = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5)


@st.composite
def steps(draw: st.DrawFn) -> Ticks:
    """One or several micro-steps of some blocks, the same block more than once perhaps, and an optimizer's slices."""
    names = draw(blocks)
    forward: Ticks = [(name, "forward") for name in names]
    backward: Ticks = [(name, "backward") for name in ["loss", *reversed(names)]]
    optimizer: Ticks = [("optimizer", "optimizer")] * draw(st.integers(1, 4))
    return (forward + backward) * draw(st.integers(1, 3)) + optimizer


def learned(step: Ticks) -> StepFollower:
    follower = StepFollower()
    for tick in step:
        follower.tick(tick)
    follower.boundary()
    follower.learn()
    return follower


def follow(follower: StepFollower, ticks: Ticks) -> list[int | None]:
    return [follower.tick(tick).layer for tick in ticks]


@given(steps(), st.data())
def test_the_second_step_after_any_ticks_is_in_step(step: Ticks, data: st.DataObject) -> None:
    follower = learned(step)
    any_tick = st.sampled_from([*step, ("expert", "forward"), ("", "")])
    follow(follower, data.draw(st.lists(any_tick, max_size=30)))
    follow(follower, step)  # perhaps taken for the rest of what came before
    follower.boundary()
    assert follow(follower, step) == [*range(1, len(step)), 0]


@given(steps(), st.data())
def test_ticks_left_out_shift_no_other(step: Ticks, data: st.DataObject) -> None:
    """Where blocks occur once, those that do tick are told right, and the next step is in step."""
    step = [tick for i, tick in enumerate(step) if tick not in step[:i]]
    follower = learned(step)
    kept = [tick for tick in step if data.draw(st.booleans())]
    for tick in kept:
        follower.tick(tick)
        assert follower.layer == (step.index(tick) + 1) % len(step)
    follower.boundary()
    assert follow(follower, step) == [*range(1, len(step)), 0]


@given(steps(), st.integers(1, 5))
def test_identities_are_unique_and_the_layer_is_never_guessed(step: Ticks, rounds: int) -> None:
    follower = learned(step)
    assert len(set(follower.layers)) == len(step)
    for index, (name, phase) in enumerate(step):
        assert follower.layers[index] == LayerId(name, step[:index].count((name, phase)), phase)
    for _ in range(rounds):
        for index, tick in enumerate(step):
            assert follower.tick(tick).layer == follower.layer == (index + 1) % len(step)
        follower.boundary()


@given(steps(), st.data())
def test_what_is_told_from_tick_to_tick_fits_together(step: Ticks, data: st.DataObject) -> None:
    """Whatever ticks, and whenever optimizers step: layers follow one another from a step's first to its last, or the
    step is said to be cut short as the next one begins."""
    follower, length = learned(step), len(step)
    any_tick = st.sampled_from([*step, ("expert", "forward"), ("", "")])
    parts = st.one_of(st.just(step), st.lists(any_tick, max_size=12))
    under_way: int | None = 0  # None: the step is not followed, or not any more
    for part, stepped in data.draw(st.lists(st.tuples(parts, st.booleans()), max_size=6)):
        for tick in part:
            at = follower.tick(tick)
            if at.ended == "whole":
                assert (under_way, at.layer) == (length - 1, 0)
            elif at.ended == "cut short":
                assert at.layer == 1 % length
            elif at.layer is not None:
                assert under_way is not None
                assert at == Position(under_way + 1)
            assert at.layer in (None, follower.layer)
            under_way = at.layer
        if stepped:
            follower.boundary()
