"""JoinedRanges: which parts of a chunk are read, if not all of it.

Samples that stay lie in a chunk with others between them that nobody needs. If a gap between two of them takes less
time to read than another read takes to begin, both are read at once, else each by a read of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class JoinedRanges:
    """Ranges that are read: `begin` and `nbytes` (n,), where each begins in its chunk and how long it is, ascending in
    a chunk; `of` (k,): the range of each sample."""

    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    of: NDArray[np.int64]

    @classmethod
    def between(
        cls, read: NDArray[np.int64], begin: NDArray[np.int64], nbytes: NDArray[np.int64], gap_bytes: int
    ) -> JoinedRanges:
        """Of samples that `read` (k,) brings, each of which lies at `begin` (k,) in its chunk, with `nbytes` (k,).
        Gaps of up to `gap_bytes` are read too."""
        if not len(read):
            nothing = np.zeros(0, np.int64)
            return cls(nothing, nothing, nothing)
        end = begin + nbytes
        gap_bytes = min(gap_bytes, int(end.max()))
        apart = read * (int(end.max()) + gap_bytes + 1)  # no sample of one read is near one of another
        order = np.argsort(apart + begin, kind="stable")
        begin, end, apart = (apart + begin)[order], (apart + end)[order], apart[order]
        reached = np.maximum.accumulate(end)  # samples may overlap
        first = np.ones(len(order), np.bool_)
        first[1:] = begin[1:] > reached[:-1] + gap_bytes
        at = np.flatnonzero(first)
        of = np.empty(len(order), np.int64)
        of[order] = first.cumsum() - 1
        return cls(begin[at] - apart[at], reached[np.append(at[1:], len(order)) - 1] - begin[at], of)
