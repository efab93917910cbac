"""ArenaPages: the free pages of a room, first freed, first used again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class ArenaPages:
    """Hands out the `n_pages` pages of an arena, all free at first, each to one owner at a time. Page p lies at byte
    p * page_bytes of the arena. Not for two threads at once."""

    def __init__(self, n_pages: int) -> None:
        self._ring = np.arange(n_pages, dtype=np.int32)
        self._head, self._free = 0, n_pages

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return self._free

    def take(self, count: int) -> NDArray[np.int32]:
        """(count,) pages that are the caller's until given back. Raises ValueError if there are fewer."""
        if count > self._free:
            raise ValueError(f"{count} pages of the arena are asked for, {self._free} are free")
        at = (self._head + np.arange(count)) % max(len(self._ring), 1)
        self._head, self._free = (self._head + count) % max(len(self._ring), 1), self._free - count
        return self._ring[at]

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """`pages` are free again, in this order. Raises ValueError if more come back than were taken."""
        if self._free + len(pages) > len(self._ring):
            raise ValueError(f"{len(pages)} pages come back to the arena, {len(self._ring) - self._free} are out")
        at = (self._head + self._free + np.arange(len(pages))) % max(len(self._ring), 1)
        self._ring[at] = pages
        self._free += len(pages)
