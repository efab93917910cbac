"""The place of an object among its like: the first has no prefix, the second `1:`, and so on."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


def prefix(ordinal: int) -> str:
    """What the names of the `ordinal`-th object start with."""
    return f"{ordinal}:" if ordinal else ""


class Ordinals(Generic[T]):
    """Objects, weakly held, each with the lowest number that was free when it joined."""

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[T]] = {}

    def join(self, item: T) -> int:
        """The number that `item` gets."""
        self.alive()
        ordinal = next(n for n in range(len(self._held) + 1) if n not in self._held)
        self._held[ordinal] = weakref.ref(item)
        return ordinal

    def leave(self, ordinal: int) -> None:
        """Frees the number, if it is taken."""
        self._held.pop(ordinal, None)

    def find(self, item: T) -> int | None:
        """The number of `item`, None if it has not joined."""
        return next((n for n, held in self._held.items() if held() is item), None)

    def alive(self) -> list[T]:
        """The objects by number; those that died have left."""
        found = {n: item for n in sorted(self._held) if (item := self._held[n]()) is not None}
        self._held = {n: self._held[n] for n in found}
        return list(found.values())
