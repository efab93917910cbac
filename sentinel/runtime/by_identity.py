"""Values by object: by its identity, whatever its `__eq__` and `__hash__` say, and for as long as it lives."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class ByIdentity(Generic[T, V]):
    """Objects, weakly held, each with a value and on behalf of an owner. False where there are none."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[T], V, object]] = {}
        self._died: list[weakref.ref[T]] = []  # filled by the collector, which runs no line of Python for it

    def put(self, item: T, value: V, owner: object = None) -> None:
        """One entry, by one call: an interrupt finds it or does not."""
        self._held[id(item)] = weakref.ref(item, self._died.append), value, owner

    def find(self, item: T) -> V | None:
        """The value of `item`, None if it has none."""
        held = self._held.get(id(item))
        return None if held is None or held[0]() is not item else held[1]

    def remove_all_of(self, owner: object) -> None:
        """Takes out what `owner` has put. May be called again."""
        for key, held in list(self._held.items()):
            if held[2] is owner:
                self._held.pop(key, None)

    def alive(self) -> list[tuple[T, V]]:
        """The objects with their values; those that died are taken out."""
        self._died.clear()
        found = []
        for key, (reference, value, _) in list(self._held.items()):
            item = reference()
            if item is None:
                self._held.pop(key, None)
            else:
                found.append((item, value))
        return found

    def __bool__(self) -> bool:
        if self._died:
            self.alive()
        return bool(self._held)
