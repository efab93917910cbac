"""The position in the step from a list of ticks alone: which layer, in step or not, and which cycle is followed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.session.layer_cycle import ROUNDS, LayerCycle, Tick
from sentinel.session.position import StepPosition


def ticks(names: str) -> tuple[Tick, ...]:
    return tuple((name, "") for name in names)


def learned(names: str) -> StepPosition:
    """The position of a job whose profiled step ticked so; an optimizer stepped at its end."""
    position = StepPosition()
    assert [position.advance(tick) for tick in ticks(names)] == list(range(1, len(names) + 1))
    position.boundary()
    position.learn()
    return position


def test_layers_follow_ticks_and_a_missing_one_puts_the_job_out_of_step() -> None:
    position = learned("abc")
    assert [position.advance(tick) for tick in ticks("abc" + "ac" + "ab")] == [1, 2, 0, 1, None, 1, 2]
    assert position.in_step
    assert position.layer == 2
    assert position.second_layer == 1


def test_a_change_that_gets_no_plan_leaves_the_cycle_before() -> None:
    position = learned("abc")
    position.detect_changes()
    found: LayerCycle | None = None
    for _ in range(ROUNDS):
        for tick in ticks("ac"):
            position.advance(tick)
            assert position.changed_by(tick) is None
        found = position.boundary() or found
    assert found == LayerCycle(ticks("ac"), (2,))
    position.follow_change(found)
    assert [layer.name for layer in position.layers] == ["a", "c"]
    position.follow_change(LayerCycle(ticks("ab"), (2,)))  # that did not come, another did
    position.undo_change()
    assert [layer.name for layer in position.layers] == ["a", "b", "c"]
    assert (position.layer, position.in_step, position.detecting, position.n_changes) == (None, False, False, 1)
    assert [position.advance(tick) for tick in ticks("abc")] == [1, 2, 0]


def test_a_change_that_is_kept_is_followed_from_its_first_tick_on() -> None:
    position = learned("abc")
    position.follow_change(LayerCycle(ticks("ac"), (2,)))
    assert not position.in_step
    assert [position.advance(tick) for tick in ticks("ac")] == [1, 0]
    position.keep_change()
    assert [layer.name for layer in position.layers] == ["a", "c"]
    assert position.n_changes == 1


def test_a_step_that_was_recorded_is_followed_unless_it_is_already() -> None:
    position = learned("abc")
    position.follow_recorded(LayerCycle(ticks("abc"), (1,)))
    assert position.boundaries == (3,)
    position.follow_recorded(LayerCycle(ticks("ac"), (2,)))
    assert position.boundaries == (2,)
    assert position.layer == 1  # its first tick had come
