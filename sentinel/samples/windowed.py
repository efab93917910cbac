"""Windowed order: each chunk is read once, and its samples are spread over as many positions as the room allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes
from sentinel.samples.chunk_slice import ChunkSlice, peak_pages
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.staging import Staging
from sentinel.samples.widest import widest


def stage_windowed(layout: Layout, room: Room, order: Order, permutation: NDArray[np.int64]) -> Staging:
    """The staging of this rank's epoch.

    A chunk whose samples would begin at position p of the chunks' order gives its samples to [p, p + width), each to a
    place that the permutation decides; the width is the widest that never exceeds the room. Raises
    UsageError where reading ahead of a chunk while another is delivered exceeds it already.
    """
    of_rank = ChunkSlice.of(layout, order, permutation)
    m = len(of_rank.samples)
    pages = room.pages(layout)[of_rank.samples]
    begin = np.searchsorted(of_rank.run, np.arange(len(of_rank.chunk)))[of_rank.run]
    spread = of_rank.when / len(permutation)

    def peak(width: int) -> int:
        by_place = np.argsort(begin + width * spread, kind="stable")
        until = np.empty(m, np.int64)
        until[by_place] = np.arange(m)
        due = np.minimum.reduceat(until, np.flatnonzero(np.diff(of_rank.run, prepend=-1)))
        return peak_pages(pages, due[of_rank.run], until, room.lead)

    width = widest(peak, room.n_pages, 2 * room.n_pages * m // max(int(pages.sum()), 1), 8 * m) if m else 0
    if m and not width:
        raise UsageError(
            f"memory of {format_bytes(room.nbytes)} is too little for windowed when reading {room.lead} samples ahead",
            "give more memory, or choose order='exact'",
        )
    at = np.argsort(begin + width * spread, kind="stable")
    return of_rank.staging(room, at, of_rank.run[at], of_rank.chunk)
