"""The seam of page trackers: who touched which pages, in which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.page_runs import pages_of_runs
from sentinel.core.trace import Quality
from sentinel.core.units import PAGE_BYTES

COUNTS = "touched layers"
"""What every page tracker counts: layers in which a page was touched, not accesses to DRAM."""


@dataclass(frozen=True, order=True)
class AddressRange:
    """Addresses [start, stop) of this process: whole pages."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop or self.start % PAGE_BYTES or self.stop % PAGE_BYTES:
            raise UsageError(
                f"[{self.start:#x}, {self.stop:#x}) is not a range of whole pages", "align both ends to 4096 bytes"
            )

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class PageSamples:
    """What a tracker saw: `runs` (n,) of PAGE_RUN_DTYPE, in the order of marks, then of addresses.

    What was seen: that a page was read, or written, in that layer; where the tracker can't tell, only that it was
    touched. A read of a page already written in the layer does not show. `tracker_ns`: what tracking itself took in
    each layer, in ns of processor time: take it off the layer's time.
    """

    runs: NDArray[Any]
    quality: Quality
    tracker_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def pages(self) -> NDArray[Any]:
        """One row a layer and page, sorted so, of PAGE_DTYPE: for samples of few pages."""
        return pages_of_runs(self.runs)


Others = Callable[[], Sequence[str]]


def nobody() -> Sequence[str]:
    """No other thread can write to what is watched."""
    return ()


class PageTracker(Protocol):
    """Calls come in the order `prepare` or not, `start`, `mark`..., `stop`; `close` may follow anything, also a failed
    call or itself."""

    name: str
    granule_bytes: int
    cut_short: bool
    """Whether a fork ended the watch that was started last: what was seen since is missing."""

    def prepare(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """Readies `ranges` for `start`, which follows with the same ones, while they hold little yet: what comes to lie
        in them is then copied once less.

        `others` as in `start`; where there are such threads, nothing is done. Raises what `start` raises.
        """

    def start(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """Watches `ranges`. Touches before the first mark belong to no layer.

        `others`: asked where other threads can't be held back while memory is replaced; names those that may write to
        `ranges`. Raises CapabilityError where this host does not allow it, or where there are such threads; nothing
        has changed then.
        """

    def mark(self, layer: int) -> None:
        """Touches until the next mark belong to `layer`; a layer may be marked again. -1: to none."""

    def stop(self) -> PageSamples:
        """Ends the watch; memory is as before `start`, but for what the program wrote."""

    def close(self) -> None:
        """As `stop`, without samples, from wherever the calls before were cut short."""
