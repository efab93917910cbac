"""Redirect: MemHub's order (Redox, arXiv 2505.16280), seeded and without a clock.

A group of N chunks shares as many places in memory as a chunk has samples; place l belongs to the l-th sample of each.
A request for a sample asks for its place, and takes whatever lies there. Where nothing does, one of the chunks whose
sample of that place is still to come is read, and fills all places that are empty and still have use for it: the chunk
with the largest share of its remaining samples filled in, then with the most of them ("optimal fill"), then the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes
from sentinel.samples.chunk_slice import ChunkSlice, peak_pages
from sentinel.samples.layout import Layout
from sentinel.samples.order import Order
from sentinel.samples.room import Room
from sentinel.samples.staging import Staging

_LET_OFF = 15
"""Per cent of a chunk: memory for a fifth of the data means groups of five chunks, also where tables and ends of pages
take some of it. Places are never all full, so mostly there is room for them."""


def stage_redirect(layout: Layout, room: Room, order: Order, permutation: NDArray[np.int64]) -> Staging:
    """The staging of this rank's epoch: groups of as many chunks as the data are larger than the room, or of more where
    samples of unlike sizes would exceed it. Raises UsageError if no grouping fits the room."""
    of_rank = ChunkSlice.of(layout, order, permutation)
    pages = room.pages(layout)[of_rank.samples]
    nbytes, room_bytes = int(layout.sample_nbytes[of_rank.samples].sum()), room.n_pages * room.page_bytes
    group = max(-(-(100 * nbytes - _LET_OFF * room_bytes) // (100 * room_bytes)), 1)
    while True:
        served = _serve(of_rank, group)
        due = np.empty(len(served.run), np.int64)
        due[served.read[::-1]] = np.arange(len(pages))[::-1]  # the first position that a read serves comes last
        if peak_pages(pages[served.at], due[served.read], np.arange(len(pages)), room.lead) <= room.n_pages:
            return of_rank.staging(room, served.at, served.read, of_rank.chunk[served.run])
        if group >= len(of_rank.chunk):
            raise UsageError(
                f"memory of {format_bytes(room.nbytes)} is too little for redirect when reading {room.lead}"
                " samples ahead",
                "give more memory, or choose order='exact'",
            )
        group += 1


@dataclass(frozen=True, eq=False)
class _Served:
    """`at`: (m,) the sample of the slice that each position delivers; `read`: (m,) the read that brought it; `run`:
    (n_reads,) the chunk of the slice that each read takes."""

    at: NDArray[np.int64]
    read: NDArray[np.int64]
    run: NDArray[np.int64]


def _serve(of_rank: ChunkSlice, group: int) -> _Served:
    """All groups at once, a request of each at a time: groups do not meet, so the order of requests within each
    counts."""
    m, n_runs = len(of_rank.samples), len(of_rank.chunk)
    first = np.searchsorted(of_rank.run, np.arange(n_runs))
    place = np.arange(m) - first[of_rank.run]
    asked = np.argsort(of_rank.when, kind="stable")  # positions -> the sample of the slice that is asked for
    of_group = of_rank.run[asked] // group
    by_group = np.argsort(of_group, kind="stable")
    counts = np.bincount(of_group)
    n_groups, n_places = len(counts), int(place.max(initial=0)) + 1
    places = _Places(n_groups, group, n_places)
    places.taken[of_rank.run // group, of_rank.run % group, place] = False
    at, read = np.empty(m, np.int64), np.empty(m, np.int64)
    begin = np.cumsum(counts) - counts
    for k in range(int(counts.max(initial=0))):
        groups = np.flatnonzero(counts > k)
        now = by_group[begin[groups] + k]
        chunk, number = places.take(groups, place[asked[now]])
        at[now] = first[groups * group + chunk] + place[asked[now]]
        read[now] = number
    return _Served(at, read, np.array(places.reads, np.int64))


class _Places:
    """The places of all groups: which chunk of its group filled each, by which read."""

    def __init__(self, n_groups: int, group: int, n_places: int) -> None:
        self.taken = np.ones((n_groups, group, n_places), bool)
        """Staged or delivered before, or not there."""
        self.filled = np.full((n_groups, n_places), -1)
        self.by_read = np.zeros((n_groups, n_places), np.int64)
        self.reads: list[int] = []
        self._group = group

    def take(self, groups: NDArray[np.int64], place: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(chunk of the group, read) of what lies at one place of each group; read first where it is empty."""
        empty = self.filled[groups, place] < 0
        if empty.any():
            self._fill(groups[empty], place[empty])
        chunk, number = self.filled[groups, place], self.by_read[groups, place]
        self.filled[groups, place] = -1
        return chunk, number

    def _fill(self, groups: NDArray[np.int64], place: NDArray[np.int64]) -> None:
        rest = ~self.taken[groups]
        empty = self.filled[groups] < 0
        fills = (rest & empty[:, None, :]).sum(axis=2)
        left = rest.sum(axis=2)
        score = fills / np.maximum(left, 1) + fills * 1e-9
        score[~rest[np.arange(len(groups)), :, place]] = -1
        chosen = score.argmax(axis=1)
        filled = rest[np.arange(len(groups)), chosen] & empty
        numbers = len(self.reads) + np.arange(len(groups))
        self.reads += (groups * self._group + chosen).tolist()
        row, column = np.nonzero(filled)
        self.filled[groups[row], column] = chosen[row]
        self.by_read[groups[row], column] = numbers[row]
        self.taken[groups[row], chosen[row], column] = True
