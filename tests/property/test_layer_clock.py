"""Whatever ticks in a step, the steps after it are in step again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.trace import LayerId, Phase
from sentinel.profiler.layers import LayerClock

Ticks = list[tuple[str, Phase]]

blocks = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5)


@st.composite
def steps(draw: st.DrawFn) -> Ticks:
    """One or several micro-steps of some blocks, the same block more than once perhaps, and an optimizer's slices."""
    names = draw(blocks)
    forward: Ticks = [(name, "forward") for name in names]
    backward: Ticks = [(name, "backward") for name in ["loss", *reversed(names)]]
    optimizer: Ticks = [("optimizer", "optimizer")] * draw(st.integers(1, 4))
    return (forward + backward) * draw(st.integers(1, 3)) + optimizer


def learned(step: Ticks) -> LayerClock:
    clock = LayerClock()
    for name, phase in step:
        clock.identify(name, phase)
    clock.boundary()
    clock.learn()
    return clock


def follow(clock: LayerClock, ticks: Ticks) -> list[int | None]:
    return [clock.advance(clock.identify(name, phase)) for name, phase in ticks]


@given(steps(), st.data())
def test_the_second_step_after_any_ticks_is_in_step(step: Ticks, data: st.DataObject) -> None:
    clock = learned(step)
    any_tick = st.sampled_from([*step, ("expert", "forward"), ("", "")])
    follow(clock, data.draw(st.lists(any_tick, max_size=30)))
    follow(clock, step)  # perhaps taken for the rest of what came before
    clock.boundary()
    assert follow(clock, step) == [*range(1, len(step)), 0]


@given(steps(), st.data())
def test_ticks_left_out_shift_no_other(step: Ticks, data: st.DataObject) -> None:
    """Where blocks occur once, those that do tick are told right, and the next step is in step."""
    step = [tick for i, tick in enumerate(step) if tick not in step[:i]]
    clock = learned(step)
    kept = [tick for tick in step if data.draw(st.booleans())]
    for name, phase in kept:
        clock.advance(clock.identify(name, phase))
        assert clock.layer == (step.index((name, phase)) + 1) % len(step)
    clock.boundary()
    assert follow(clock, step) == [*range(1, len(step)), 0]


@given(steps(), st.integers(1, 5))
def test_identities_are_unique_and_the_layer_is_never_guessed(step: Ticks, rounds: int) -> None:
    clock = learned(step)
    assert len(set(clock.ring)) == len(step)
    for _ in range(rounds):
        for index, (name, phase) in enumerate(step):
            tick = clock.identify(name, phase)
            assert tick == clock.ring[index] == LayerId(name, tick.occurrence, phase)
            assert clock.advance(tick) == clock.layer == (index + 1) % len(step)
        clock.boundary()


@given(steps(), st.data())
def test_to_follow_is_to_advance_by_identities(step: Ticks, data: st.DataObject) -> None:
    """Whatever ticks, and whenever optimizers step."""
    two = [learned(step), learned(step)]
    any_tick = st.sampled_from([*step, ("expert", "forward"), ("", "")])
    parts = st.one_of(st.just(step), st.lists(any_tick, max_size=12))
    for part, boundary in data.draw(st.lists(st.tuples(parts, st.booleans()), max_size=6)):
        for name, phase in part:
            assert two[0].follow(name, phase) == two[1].advance(two[1].identify(name, phase))
            assert (two[0].layer, two[0].in_step) == (two[1].layer, two[1].in_step)
        if boundary:
            for clock in two:
                clock.boundary()
