"""How much of a node tensors have: the pages that operands lay on, asked again from the kernel at each look."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES

Nodes = Callable[[NDArray[np.uint64]], NDArray[np.int32]]
"""Addresses of pages -> the node of each, negative where there is none."""

_MOST_PAGES = 1 << 17
"""Asked for at a look. Of more, every third is, or every ninth, ..., and stands for the others."""


class TensorRoom:
    """Pages of tensors, dead ones too while malloc keeps their memory: the next tensor gets it.

    Memory that no operator has touched since the first `add` is not known.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._known = np.zeros(0, np.int64)
        self._added: list[NDArray[np.int64]] = []
        self._every = 1
        self._finished = False

    def add(self, pages: NDArray[np.int64]) -> None:
        """The numbers of pages that an operand lies on."""
        if not self._finished:
            self._added.append(pages[pages % self._every == 0])

    def finish(self) -> None:
        """Nothing is asked any more, so what is added is dropped."""
        self._finished = True

    def nbytes(self, node: int) -> int:
        """Bytes that are on `node` now."""
        known = np.unique(np.concatenate([self._known, *self._added]))
        self._added.clear()
        while len(known) > _MOST_PAGES:
            self._every *= 3
            known = known[known % self._every == 0]
        found = self._nodes((known * PAGE_BYTES).astype(np.uint64))
        self._known = known[found >= 0]  # the others were given back, or never written
        return int((found == node).sum()) * self._every * PAGE_BYTES
