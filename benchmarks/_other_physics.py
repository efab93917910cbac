"""Slow memory that obeys other laws than the model: an emulated tier for benchmarks/blind_validation.py.

What is planned and predicted does not know of it. A latency costs half as much again, half of the time that bytes take
is hidden behind compute, and transfers that meet share what carries them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel import tiers
from sentinel.migration.mover import NativeMover
from sentinel.tiers import EmulatedTier, HeldBlock, Job

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
        return OtherPhysics(replace(machine, tiers=tuple(specs)), self._index, self._mover)

    def _job(self, block: HeldBlock, source: int, target: int, after: int) -> Job:
        job = super()._job(block, source, target, after)
        assert isinstance(self._mover, NativeMover)  # the only one that knows what is under way
        meets = self._mover.held().in_flight_bytes > 0
        return job._replace(duration_ns=round(job.duration_ns * SHARED)) if meets else job


def install() -> None:
    """From now on emulated tiers of this process are of this kind."""
    tiers.KINDS["emulated"] = OtherPhysics
