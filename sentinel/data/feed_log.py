"""FeedLog: reads and batches of an epoch, each with its times; the report of a loader shows them as a timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.data.last_rows import LastRows
from sentinel.data.read_log import NO_READS
from sentinel.data.served_samples import COUNTS, MOMENTS


@dataclass(frozen=True, eq=False)
class FeedLog:
    """`reads`: (rows,) of READ; `batches`: (rows,) of MOMENTS and COUNTS, in the order of delivery. Of long epochs the
    last ones; `has_all_reads`, `has_all_batches`: none is left out."""

    reads: NDArray[np.void]
    batches: NDArray[np.void]
    has_all_reads: bool = True
    has_all_batches: bool = True

    @classmethod
    def of_nothing(cls) -> FeedLog:
        """Where nothing was delivered yet."""
        return cls(NO_READS, LastRows((*MOMENTS, *COUNTS), 0).kept)
