"""How a plan would have served a step recorded later: by page touches that were seen, not by the plan's own counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.attribution import attribute
from sentinel.core.errors import UsageError
from sentinel.core.lifetimes import Circle, entities
from sentinel.core.page_touches import attribute_pages
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import Trace
from sentinel.core.units import PAGE_BYTES
from sentinel.simulator.served import served_spans


@dataclass(frozen=True)
class Observed:
    """Page touches of one step: of pages that the plan places, how many the fast tier serves; and of other pages.

    A page counts once a layer that touches it. `by_tensor`: name -> (placed, fast).
    """

    placed_pages: int
    fast_pages: int
    other_pages: int
    by_tensor: dict[str, tuple[int, int]]

    @property
    def fast_served_fraction(self) -> float | None:
        """None if no page that the plan places was touched."""
        return self.fast_pages / self.placed_pages if self.placed_pages else None


def observed(plan: Plan, trace: Trace) -> Observed:
    """The page touches of `trace`, by the tier in which `plan` has each page in that layer.

    A block in flight is served by the slower of its two tiers. Raises UsageError if the trace saw no pages, or has
    other layers than the plan.
    """
    if not len(trace.pages):
        raise UsageError(
            "a trace without page touches shows nothing of where pages are", "record it with a page tracker"
        )
    if len(trace.layers) != plan.n_layers:
        raise UsageError(
            f"the trace has {len(trace.layers)} layers, the plan {plan.n_layers}", "record the step of the plan"
        )
    profile = attribute(trace)
    found = entities(trace, Circle.of(trace))
    used = set(zip(profile.accesses["tensor"].tolist(), profile.accesses["layer"].tolist(), strict=True))
    rows, touches = attribute_pages(trace, found, used)
    home = _homes(plan, profile)
    placed = (touches.owner >= 0) & (home[touches.owner] >= 0)
    owner, layer = touches.owner[placed], rows["layer"][placed].astype(np.int64)
    fast = _tiers(plan, home[owner] // PAGE_BYTES + touches.page[placed], layer) == 0
    counts = np.bincount(owner, minlength=len(profile.names)), np.bincount(owner, fast, len(profile.names))
    by_tensor = {
        name: (int(all_), int(quick)) for name, all_, quick in zip(profile.names, *counts, strict=True) if all_
    }
    return Observed(len(owner), int(fast.sum()), int((~placed).sum()), by_tensor)


def _homes(plan: Plan, profile: Profile) -> NDArray[np.int64]:
    """(n + 1,) plan address of each tensor of `profile`, -1 of what has no slot; the last one is -1."""
    by_key: dict[object, int] = {slot.key or slot.name: slot.offset for slot in plan.slots}
    home = np.full(len(profile.names) + 1, -1, np.int64)
    for index, (name, row) in enumerate(zip(profile.names, profile.tensors, strict=True)):
        told_by = name if row["persistent"] else (int(row["key_layer"]), int(row["key_ordinal"]))
        home[index] = by_key.get(told_by, -1)
    return home


def _tiers(plan: Plan, page: NDArray[np.int64], layer: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tier that serves each (page of the plan's addresses, layer); the fast one where no block is."""
    order = np.argsort(page, kind="stable")
    page, layer = page[order], layer[order]
    tier = np.zeros(len(page), np.int64)
    for index, serves, start, stop in served_spans(plan).tolist():
        if not serves:
            continue
        block = plan.blocks[index]
        low, high = np.searchsorted(page, [block.offset // PAGE_BYTES, (block.offset + block.nbytes) // PAGE_BYTES])
        here = slice(int(low), int(high))
        tier[here][(layer[here] - start) % plan.n_layers < stop - start] = serves
    out = np.empty_like(tier)
    out[order] = tier
    return out
