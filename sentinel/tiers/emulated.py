"""A slower node with real copies and injected delays: accounts and time are those of another tier.

What moves is copied by a thread at the link's rate, out of the block's live pages into scratch memory, on the way there
as on the way back: processor time and memory bandwidth are spent as a move spends them. Live pages are never written
to, so tensors keep their own pages, and no byte is at risk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import transfer_ns
from sentinel.tiers.tier import EMULATED, HeldBlock, Job, Tier


class EmulatedTier(Tier):
    """Jobs of one direction queue on a link, and copy what moves at its rate, or as fast as this host copies; accesses
    cost the difference between this tier and the fast one. Only the accounts say where bytes are, so a block may be
    born here."""

    takes_unplanned_births = True

    def delay_ns(self, uses: NDArray[Any]) -> NDArray[np.int64]:
        """(m,) what each use costs here beyond the fast tier, at least 0."""
        slow, fast = self.spec, self._machine.fast
        operands = uses["reads"].astype(np.float64) + uses["writes"]
        extra: NDArray[np.float64] = (
            operands * (slow.latency_ns - fast.latency_ns)
            + uses["read_bytes"] * (1e9 / slow.read_bytes_per_s - 1e9 / fast.read_bytes_per_s)
            + uses["written_bytes"] * (1e9 / slow.write_bytes_per_s - 1e9 / fast.write_bytes_per_s)
        )
        whole: NDArray[np.int64] = np.rint(np.maximum(extra, 0.0)).astype(np.int64)
        return whole

    def job(self, block: HeldBlock, source: int, target: int) -> Job:
        """See Tier."""
        duration_ns, copies = self._work(source, target, block.held)
        spans = tuple(_first_bytes(block.ranges(), copies)) if copies else ()
        return Job(source, target, block.nbytes, block.held, kind=EMULATED, duration_ns=duration_ns, spans=spans)

    def _work(self, source: int, target: int, held: Sequence[int]) -> tuple[int, int]:
        """How long what `held` tells of takes to `target`, in ns, and how many bytes are copied for that."""
        away = [(tier, nbytes) for tier, nbytes in enumerate(held) if nbytes and tier != target]
        duration_ns = sum(self._journey_ns(tier, target, nbytes) for tier, nbytes in away or [(source, 0)])
        return duration_ns, sum(nbytes * self._hops(tier, target) for tier, nbytes in away)

    def _hops(self, source: int, target: int) -> int:
        """How many links lie between two tiers."""
        return 1 if self._machine.hub in (source, target) else 2

    def _journey_ns(self, source: int, target: int, nbytes: int) -> int:
        """How long `nbytes` take; between two slower tiers as long as through fast memory."""
        hub = self._machine.hub
        if hub in (source, target):
            return transfer_ns(self._machine.link(source, target), nbytes)
        return self._journey_ns(source, hub, nbytes) + self._journey_ns(hub, target, nbytes)


def _first_bytes(spans: Sequence[tuple[int, int]], nbytes: int) -> Iterator[tuple[int, int]]:
    """`nbytes` of `spans` of (address, nbytes), from the first one on, and over them again if they have fewer: of a
    block in several tiers nobody knows which pages are where, only how many."""
    pieces = [span for span in spans if span[1]]  # without any there would be no end
    while pieces and nbytes > 0:
        for address, length in pieces:
            if nbytes > 0:
                yield address, min(length, nbytes)
            nbytes -= length
