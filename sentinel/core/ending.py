"""Ends several things one after the other, whatever one of them raises."""

from __future__ import annotations

from collections.abc import Callable

from sentinel.core.interrupts import is_interrupt


def end_all(*ends: Callable[[], object]) -> None:
    """Calls all of `ends` in order. Then raises what an interrupt raised, else the first failure, if there was one.

    An interrupt (`is_interrupt`) comes first: the failures after it often follow from it, and whoever pressed
    Ctrl-C is to see that it came.
    """
    raised: list[BaseException] = []
    for end in ends:
        try:
            end()
        except BaseException as error:
            raised.append(error)
    if raised:
        raise next(filter(is_interrupt, raised), raised[0])
