"""Several things are ended whatever one of them raises; an interrupt is what is told."""

from __future__ import annotations

import pytest

from sentinel.core.ending import end_all


def test_all_are_ended_in_order_and_the_first_failure_is_raised() -> None:
    ended: list[int] = []

    def failing(number: int) -> None:
        ended.append(number)
        raise ValueError(number)

    end_all(lambda: ended.append(0))
    with pytest.raises(ValueError, match="2"):
        end_all(lambda: ended.append(1), lambda: failing(2), lambda: failing(3), lambda: ended.append(4))
    assert ended == [0, 1, 2, 3, 4]


def test_an_interrupt_comes_before_the_failures_around_it() -> None:
    def raising(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyboardInterrupt):
        end_all(lambda: raising(ValueError()), lambda: raising(KeyboardInterrupt()), lambda: raising(OSError()))
