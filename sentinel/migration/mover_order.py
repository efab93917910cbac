"""A job as the native mover reads it: packed once, and submitted again and again."""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import chain
from typing import NamedTuple

from sentinel.tiers.tier import MOST_TIERS, Job

_ORDER = struct.Struct(f"=Q{MOST_TIERS}Q7QiiBBBBB3x")
"""struct sn_job; packed, since a field at a time takes longer than the rest of a submission."""
_AFTER = slice(8 * (MOST_TIERS + 3), 8 * (MOST_TIERS + 4))
_NOT_HELD = tuple((0,) * (MOST_TIERS - count) for count in range(MOST_TIERS + 1))


class Order(NamedTuple):
    """A job as the native mover reads it. `spans`: what `packed` points at, and so what must not go before it."""

    packed: bytes
    spans: array[int]

    def starting_after(self, job: int) -> Order:
        """The same, once `job` has ended."""
        packed = self.packed[: _AFTER.start] + job.to_bytes(8, sys.byteorder) + self.packed[_AFTER.stop :]
        return Order(packed, self.spans)


def order_of(job: Job) -> Order:
    """What tells the native mover of `job`. It may be submitted again and again."""
    spans = array("Q", chain.from_iterable(job.spans))
    packed = _ORDER.pack(
        job.nbytes,
        *job.held,
        *_NOT_HELD[len(job.held)],
        job.duration_ns,
        job.bytes_per_s,
        job.after,
        spans.buffer_info()[0],
        len(job.spans),
        job.spare_duration_ns,
        job.backend,
        job.node,
        job.spare_node,
        job.source,
        job.target,
        job.kind,
        job.first,
        job.spare,
    )
    return Order(packed, spans)
