"""A place for one onlooker of what sessions do, layer by layer: measurements that are no part of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan


class Observer(Protocol):
    """Called on the thread that trains, between operators."""

    def applying(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """A plan's migrations are carried out from now on; `ranges(block)`: its (address, nbytes) pieces."""

    def layer_ended(self, layer: int, length: int) -> None:
        """`layer` of a step of `length` layers has ended in step; nothing that is due has been waited for yet."""


observer: Observer | None = None
"""Assign `observing.observer`; a copy made by `from ... import` would not follow."""
