"""Layouts and stagings for tests: data sets of a few samples, and a reader that carries a staging out step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from sentinel.samples import BEFORE, DIRECT, ArenaPages, Layout, Staging


def layout_of(counts, sizes, encoded=False) -> Layout:
    """Chunks of so many samples, one after the other in one file, with 3 bytes before each sample."""
    counts, sizes = np.array(counts, np.int32), np.array(sizes, np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    ends = np.cumsum(sizes + 3)
    begins = np.concatenate([[0], ends[first[1:-1] - 1]]).astype(np.int64)
    nbytes = np.diff(begins, append=ends[-1])
    return Layout(
        "test",
        ("a",),
        np.array([int(ends[-1])]),
        np.array([1]),
        np.zeros(len(counts), np.int32),
        begins,
        nbytes,
        counts,
        ends - sizes - np.repeat(begins, counts),
        sizes,
        encoded,
    )


def even(n_chunks: int, samples: int, nbytes: int = 10) -> Layout:
    """All chunks alike, and all samples."""
    return layout_of([samples] * n_chunks, [nbytes] * (n_chunks * samples))


@st.composite
def layouts(draw) -> Layout:
    """Up to 12 chunks of up to 8 samples of 1 to 40 bytes."""
    counts = draw(st.lists(st.integers(1, 8), min_size=1, max_size=12))
    sizes = draw(st.lists(st.integers(1, 40), min_size=sum(counts), max_size=sum(counts)))
    return layout_of(counts, sizes)


def permutation(n: int, seed: int) -> np.ndarray:
    """One of n samples."""
    return np.random.default_rng(seed).permutation(n)


@dataclass
class Reader:
    """Carries stagings out, one epoch after the other, as early as each allows, and checks every step of it."""

    pages: ArenaPages
    held: dict[int, np.ndarray] = field(default_factory=dict)
    peak_pages: int = 0

    def carry_out(self, layout: Layout, staging: Staging) -> None:
        """Raises where a sample is not where it should be, a page has two owners, or there is no room."""
        room, sizes = staging.room, staging.room.pages(layout)
        kept = np.flatnonzero(staging.stay_read == BEFORE)
        assert sorted(self.held) == kept.tolist() == list(range(len(kept)))
        self._leave(np.flatnonzero(staging.stay_until == -1))
        read = 0
        for position in range(staging.n_positions):
            while read < len(staging.read_due) and staging.read_due[read] - room.lead <= position:
                self._read(layout, staging, read, sizes)
                read += 1
            stay = int(staging.stay_at[position])
            if stay != DIRECT:
                assert stay in self.held
                assert staging.stay_sample[stay] == staging.order[position]
            self._leave(np.flatnonzero(staging.stay_until == position))
        assert read == len(staging.read_due)
        assert sorted(self.held) == staging.kept.tolist()
        self.held = dict(enumerate(self.held[stay] for stay in staging.kept.tolist()))

    def _read(self, layout: Layout, staging: Staging, read: int, sizes: np.ndarray) -> None:
        chunk = staging.read_chunk[read]
        stays = range(staging.first_stay[read], staging.first_stay[read + 1])
        assert len(stays)
        for stay in stays:
            assert staging.stay_read[stay] == read
            assert layout.chunk_of[staging.stay_sample[stay]] == chunk
            self.held[stay] = self.pages.take(int(sizes[staging.stay_sample[stay]]))
        owned = np.concatenate(list(self.held.values()))
        assert len(owned) == len(set(owned.tolist()))
        self.peak_pages = max(self.peak_pages, len(owned))

    def _leave(self, stays: np.ndarray) -> None:
        for stay in stays.tolist():
            self.pages.give_back(self.held.pop(stay))
