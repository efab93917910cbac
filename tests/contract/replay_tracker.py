"""A page tracker in pure Python that is told what was touched: what the real ones are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.core.page_runs import PAGE_DTYPE
from sentinel.core.trace import Quality
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages.protocol import COUNTS, AddressRange, Others, PageSamples, nobody
from tests.page_rows import runs_of_pages


class ReplayTracker:
    """Plays back touches that were written down before, or that `touch` tells it.

    `recorded`: (layer, address, write) of each touch; those of a layer come with its mark.
    """

    name = "replay"
    cut_short = False
    granule_bytes = PAGE_BYTES

    def __init__(self, recorded: Iterable[tuple[int, int, bool]] = ()) -> None:
        self._recorded: dict[int, list[tuple[int, bool]]] = {}
        for layer, address, write in recorded:
            self._recorded.setdefault(layer, []).append((address, write))
        self._ranges: tuple[AddressRange, ...] | None = None
        self._layer = -1
        self._seen: dict[tuple[int, int], list[int]] = {}

    def prepare(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """See PageTracker."""

    def start(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """See PageTracker."""
        del others
        if self._ranges is not None:
            raise UsageError("tracker replay: started twice", "stop it first")
        if not ranges:
            raise UsageError("tracker replay: 0 ranges to watch", "give at least one")
        self._ranges, self._layer, self._seen = tuple(ranges), -1, {}

    def mark(self, layer: int) -> None:
        """See PageTracker."""
        if self._ranges is None:
            raise UsageError("tracker replay: marked without a start", "start it first")
        self._layer = layer
        for address, write in self._recorded.pop(layer, []):
            self.touch(address, write)

    def touch(self, address: int, write: bool) -> None:
        """The byte at `address` is read or written now."""
        if self._ranges is None or self._layer == -1:
            return
        if any(watched.start <= address < watched.stop for watched in self._ranges):
            reads, writes = self._seen.get((self._layer, address // PAGE_BYTES), (0, 0))
            # as for the others: a page that was written is mapped, its reads no longer show
            now = [reads, 1] if write else [1 if not writes else reads, writes]
            self._seen[self._layer, address // PAGE_BYTES] = now

    def stop(self) -> PageSamples:
        """See PageTracker."""
        if self._ranges is None:
            raise UsageError("tracker replay: stopped without a start", "start it first")
        self._ranges = None
        rows = np.array([(*key, *kinds) for key, kinds in self._seen.items()], PAGE_DTYPE)
        notes = ("played back from a list, not observed",)
        return PageSamples(runs_of_pages(rows), Quality("replay", COUNTS, granularity_bytes=PAGE_BYTES, notes=notes))

    def close(self) -> None:
        """See PageTracker."""
        self._ranges = None
