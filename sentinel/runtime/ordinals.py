"""The place of an object among its like: the first has no prefix, the second `1:`, and so on."""

from __future__ import annotations

from typing import TypeVar

from sentinel.runtime.by_identity import ByIdentity

T = TypeVar("T")


def prefix(ordinal: int) -> str:
    """What the names of the `ordinal`-th object start with."""
    return f"{ordinal}:" if ordinal else ""


class Ordinals(ByIdentity[T, int]):
    """Objects, weakly held, each with the lowest number that was free when it joined."""

    def join(self, item: T, owner: object = None) -> int:
        """The number that `item` gets, for as long as it lives or until `remove_all_of`."""
        taken = {number for _, number in self.alive()}
        ordinal = next(n for n in range(len(taken) + 1) if n not in taken)
        self.put(item, ordinal, owner)
        return ordinal

    def in_order(self) -> list[T]:
        """The objects by number; those that died have left."""
        return [item for item, _ in sorted(self.alive(), key=lambda held: held[1])]
