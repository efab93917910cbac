"""SourceCosts: what reading a source costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sentinel.core.errors import UsageError

_LONGEST_GAP = 1 << 40
"""Bytes: longer than any chunk."""


@dataclass(frozen=True)
class SourceCosts:
    """A read of b bytes takes `latency_ns` + b / `read_bytes_per_s`; of up to `in_flight` reads the latencies overlap.

    `cached`: share of the reads tried that the kernel had in its page cache. `measured`: on this host and source, else
    declared. `shared_ns`: of reads by threads of one process, which share its interpreter, each takes at least that,
    as tried: with opening the file.
    """

    latency_ns: float
    read_bytes_per_s: float
    in_flight: float = 1
    measured: bool = False
    cached: float = 0.0
    shared_ns: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.latency_ns < math.inf and self.read_bytes_per_s > 0 and self.in_flight >= 1):
            raise UsageError(
                f"a source of {self.latency_ns} ns a read, {self.read_bytes_per_s} bytes/s, {self.in_flight} in flight",
                "give a latency of at least 0, a bandwidth above 0 and at least one read in flight",
            )

    def of_reader(self, in_flight: int) -> SourceCosts:
        """What a reader sees that has at most so many reads in flight."""
        return replace(self, in_flight=min(self.in_flight, in_flight))

    def of_workers(self, workers: int) -> SourceCosts:
        """What so many processes see that have one read in flight each. Whether they could read more at once than the
        threads that were tried is not known: it is priced as if they could not."""
        return replace(self, in_flight=min(self.in_flight, max(workers, 1)), shared_ns=0.0)

    @property
    def read_ns(self) -> float:
        """Time that a read takes beside that of its bytes, with as many in flight as there can be."""
        return max(self.latency_ns / self.in_flight, self.shared_ns)

    @property
    def gap_bytes(self) -> int:
        """Bytes that are read in the time that another read takes to begin."""
        if not self.read_ns:
            return 0
        return int(min(1e-9 * self.read_ns * self.read_bytes_per_s, _LONGEST_GAP))

    def ns(self, reads: float, nbytes: float) -> float:
        """Time that so many reads of together `nbytes` take."""
        return reads * self.read_ns + 1e9 * nbytes / self.read_bytes_per_s
