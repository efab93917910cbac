"""Room: the memory that samples of a job may take, cut in pages of one size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import format_bytes
from sentinel.samples.layout import Layout

_PARTS = 64
"""Pages that a mean sample takes: rounding up then wastes less than 1 %."""


@dataclass(frozen=True)
class Room:
    """`nbytes` of memory, of which whole pages of `page_bytes` are used; a sample takes pages of its own, wherever
    these lie, so no room is lost between samples of unlike sizes.

    `lead`: how many samples ahead of the next to be delivered reads may begin; samples read ahead and samples not yet
    given back are counted in the room. Raises UsageError for a room below one page.
    """

    nbytes: int
    page_bytes: int
    lead: int = 0

    def __post_init__(self) -> None:
        if self.page_bytes < 1 or self.nbytes < self.page_bytes or self.lead < 0:
            raise UsageError(
                f"a room of {self.nbytes} bytes in pages of {self.page_bytes}, reading {self.lead} samples ahead",
                "give at least one page and a lead of at least 0",
            )

    @classmethod
    def of(cls, layout: Layout, nbytes: int, lead: int = 0) -> Room:
        """A room with pages that suit the sizes of these samples: their size if they have but one, else about a 64th of
        the mean. Raises UsageError for a room that cannot hold the largest chunk, with the bytes that would do."""
        sizes = layout.sample_nbytes
        most, mean = int(sizes.max()), int(sizes.mean())
        room = cls(nbytes, most if most == int(sizes.min()) else 1 << max((mean // _PARTS).bit_length() - 1, 4), lead)
        return room.checked(layout)

    @property
    def n_pages(self) -> int:
        """Pages that there are."""
        return self.nbytes // self.page_bytes

    def pages(self, layout: Layout) -> NDArray[np.int64]:
        """(n_samples,) pages that each sample takes."""
        return -(-layout.sample_nbytes // self.page_bytes)

    def checked(self, layout: Layout) -> Room:
        """This room; raises UsageError if the samples of one chunk do not fit."""
        chunks = np.add.reduceat(self.pages(layout), layout.first_sample[:-1])
        if int(chunks.max()) > self.n_pages:
            needed = int(chunks.max()) * self.page_bytes
            raise UsageError(
                f"memory of {format_bytes(self.nbytes)} is less than the samples of one chunk",
                f"give at least {format_bytes(needed + needed // 100)}, or read chunks in parts",
            )
        return self
