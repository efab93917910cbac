"""Slow memory that obeys other laws than the model: an emulated tier for benchmarks/blind_validation.py.

What is planned and predicted does not know of it. A latency costs half as much again, half of the time that bytes take
is hidden behind compute, and transfers that meet share what carries them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel import tiers
from sentinel.migration import engine
from sentinel.migration.mover import NativeMover
from sentinel.migration.mover_order import _ORDER, Order
from sentinel.tiers import EmulatedTier
from sentinel.tiers.tier import MOST_TIERS

_DURATION = MOST_TIERS + 1
"""Of a packed order's fields, the duration."""
LATENCY, HIDDEN, SHARED = 1.5, 0.5, 2.0
"""Times the latency; of the time that bytes take, the hidden share; times the duration of a transfer that meets
others."""


class OtherPhysics(EmulatedTier):
    """An emulated tier with these laws."""

    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """See Tier."""
        slow = self.spec
        nothing = uses.copy()
        nothing["read_bytes"], nothing["written_bytes"] = 0, 0
        dearer = self._at(replace(slow, latency_ns=LATENCY * slow.latency_ns))
        latencies = super(OtherPhysics, dearer).delay_ns(nothing)
        nothing = uses.copy()
        nothing["reads"], nothing["writes"] = 0, 0
        whole: NDArray[np.int64] = latencies + np.rint((1 - HIDDEN) * super().delay_ns(nothing)).astype(np.int64)
        return whole

    def _at(self, spec: Any) -> OtherPhysics:
        machine = self._machine
        specs = [spec if index == self._index else tier for index, tier in enumerate(machine.tiers)]
        return OtherPhysics(replace(machine, tiers=tuple(specs)), self._index)


class SharedLink(NativeMover):
    """A mover whose transfers take longer where they meet others."""

    def submit_all(self, orders: Sequence[Order]) -> int:
        """See NativeMover. Of those that begin together the first one has an idle link to itself as it begins."""
        idle = self.held().in_flight_bytes == 0
        alone, meeting = (orders[:1], orders[1:]) if idle else ((), orders)
        return super().submit_all([*alone, *map(_shared, meeting)])


def duration_ns(order: Order) -> int:
    """As of its job."""
    return int(_ORDER.unpack(order.packed)[_DURATION])


def _shared(order: Order) -> Order:
    fields = list(_ORDER.unpack(order.packed))
    fields[_DURATION] = round(duration_ns(order) * SHARED)
    return Order(_ORDER.pack(*fields), order.spans)


def install() -> None:
    """From now on emulated tiers of this process are of this kind."""
    tiers.KINDS["emulated"] = OtherPhysics
    engine.NativeMover = SharedLink  # type: ignore[misc]
