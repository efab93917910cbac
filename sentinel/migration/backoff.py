"""Blocks whose moves failed lately, and which are left where they are for a while."""

from __future__ import annotations

from collections import Counter

FAILURES = 3
"""A block that could not be moved to a tier 3 times in a row is left where it is for HOLD_STEPS."""
HOLD_STEPS = 16
"""Steps until a block that failed FAILURES times is moved again; one more failure, and it is held again."""


class Backoff:
    """A block that cannot move is left alone for a while, instead of being tried in every step.

    Late migrations are another matter: test and trial (`trials`) decides about those, once for each layer.
    """

    def __init__(self) -> None:
        self._failures: Counter[tuple[int, int]] = Counter()  # by block and the tier that it could not reach
        self._until: dict[tuple[int, int], int] = {}

    def holds(self, block: int, target: int, step: int) -> bool:
        """Whether `block` is not to be sent to tier `target` in this step."""
        return bool(self._until) and step < self._until.get((block, target), 0)

    def moved(self, block: int, target: int) -> None:
        """A move of `block` to `target` has ended well."""
        if self._failures:
            self._failures.pop((block, target), None)
            self._until.pop((block, target), None)

    def failed(self, block: int, target: int, step: int) -> bool:
        """A move of `block` to `target` failed, in whole or in part. Whether it is held from now on."""
        self._failures[block, target] += 1
        if self._failures[block, target] < FAILURES:
            return False
        self._until[block, target] = step + 1 + HOLD_STEPS
        return True
