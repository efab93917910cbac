"""The seam of page trackers: who touched which pages, in which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.trace import PAGE_DTYPE, Quality
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
    """What a tracker saw: `pages` (n,) of PAGE_DTYPE, one row a layer and page, sorted so.

    `reads` and `writes` are 1 or 0: whether the page was seen read, or written, in that layer; both -1 where the
    tracker can't tell. A read of a page already written in the layer does not show. `tracker_ns`: what
    tracking itself took in each layer, in ns of processor time: take it off the layer's time.
    """

    pages: NDArray[Any]
    quality: Quality
    tracker_ns: Mapping[int, int] = field(default_factory=dict)


def on_ring(samples: PageSamples, n_layers: int) -> PageSamples:
    """`samples` with layer numbers taken modulo `n_layers`: the stretch after a step's last tick is layer 0.

    A page touched in both stretches of that layer then has one row.
    """
    rows = samples.pages
    pages = page_rows(rows["layer"] % n_layers, rows["page"], rows["reads"], rows["writes"])
    spent: dict[int, int] = {}
    for layer, ns in samples.tracker_ns.items():
        spent[layer % n_layers] = spent.get(layer % n_layers, 0) + ns
    return PageSamples(pages, samples.quality, spent)


Others = Callable[[], Sequence[str]]


def nobody() -> Sequence[str]:
    """No other thread can write to what is watched."""
    return ()


class PageTracker(Protocol):
    """Calls come in the order `start`, `mark`..., `stop`; `stop` may follow anything, also a failed `start`."""

    name: str

    def start(self, ranges: Sequence[AddressRange], others: Others = nobody) -> None:
        """Watches `ranges`. Touches before the first mark belong to no layer.

        `others`: asked where other threads can't be held back while memory is replaced; names those that may write to
        `ranges`. Raises CapabilityError where this host does not allow it, or where there are such threads; nothing
        has changed then.
        """
        ...

    def mark(self, layer: int) -> None:
        """Touches until the next mark belong to `layer`; a layer may be marked again. -1: to none."""
        ...

    def stop(self) -> PageSamples:
        """Ends the watch; memory is as before `start`, but for what the program wrote."""
        ...


def page_rows(layers: NDArray[Any], pages: NDArray[Any], reads: NDArray[Any], writes: NDArray[Any]) -> NDArray[Any]:
    """Rows of PAGE_DTYPE, one a (layer, page), sorted; where a layer was marked twice, its touches are joined."""
    rows = np.zeros(len(layers), PAGE_DTYPE)
    for name, column in (("layer", layers), ("page", pages), ("reads", reads), ("writes", writes)):
        rows[name] = column
    later, onward = np.diff(rows["layer"]), np.diff(rows["page"])
    if ((later > 0) | (later == 0) & (onward > 0)).all():
        return rows  # as marks come in order, the usual case
    rows = rows[np.lexsort((rows["page"], rows["layer"]))]
    first = np.concatenate([[True], (np.diff(rows["layer"]) != 0) | (np.diff(rows["page"]) != 0)])
    starts = np.flatnonzero(first)
    joined = rows[starts]
    joined["reads"] = np.maximum.reduceat(rows["reads"], starts)
    joined["writes"] = np.maximum.reduceat(rows["writes"], starts)
    return joined
