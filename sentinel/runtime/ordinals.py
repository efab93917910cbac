"""The place of an object among its like: the first has no prefix, the second `1:`, and so on."""

from __future__ import annotations

from typing import Generic, TypeVar

from sentinel.runtime.by_identity import ByIdentity

T = TypeVar("T")


def prefix(ordinal: int) -> str:
    """What the names of the `ordinal`-th object start with."""
    return f"{ordinal}:" if ordinal else ""


class Ordinals(Generic[T]):
    """Objects, weakly held, each with the lowest number that was free when it joined. False where there are none."""

    def __init__(self) -> None:
        self._held: ByIdentity[T, int] = ByIdentity()

    def join(self, item: T, owner: object = None) -> int:
        """The number that `item` gets, for as long as it lives or until `remove_all_of`."""
        taken = {number for _, number in self._held.alive()}
        ordinal = next(n for n in range(len(taken) + 1) if n not in taken)
        self._held.put(item, ordinal, owner)
        return ordinal

    def remove_all_of(self, owner: object) -> None:
        """Frees the numbers of what joined on behalf of `owner`. May be called again."""
        self._held.remove_all_of(owner)

    def find(self, item: T) -> int | None:
        """The number of `item`, None if it has not joined."""
        return self._held.find(item)

    def alive(self) -> list[T]:
        """The objects by number; those that died have left."""
        return [item for item, _ in sorted(self._held.alive(), key=lambda held: held[1])]

    def __bool__(self) -> bool:
        return bool(self._held)
