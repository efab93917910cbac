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
_DURATION, _AFTER = (slice(8 * field, 8 * field + 8) for field in (MOST_TIERS + 1, MOST_TIERS + 3))
_NOT_HELD = tuple((0,) * (MOST_TIERS - count) for count in range(MOST_TIERS + 1))


class Order(NamedTuple):
    """A job as the native mover reads it. `spans`: what `packed` points at, and so what must not go before it."""

    packed: bytes
    spans: array[int]

    @property
    def duration_ns(self) -> int:
        """As of its job."""
        return int.from_bytes(self.packed[_DURATION], sys.byteorder)

    def lasting(self, duration_ns: int) -> Order:
        """The same with another duration."""
        return self._with(_DURATION, duration_ns)

    def starting_after(self, job: int) -> Order:
        """The same, once `job` has ended."""
        return self._with(_AFTER, job)

    def _with(self, field: slice, value: int) -> Order:
        packed = self.packed[: field.start] + value.to_bytes(8, sys.byteorder) + self.packed[field.stop :]
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
