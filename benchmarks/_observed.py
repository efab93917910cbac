"""How a plan would have served a step recorded later: by page touches that were seen, not by the plan's own counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.attribution import attribute
from sentinel.core.errors import UsageError
from sentinel.core.lifetimes import Circle, entities
from sentinel.core.page_touches import PageTouches
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import Trace
from sentinel.core.units import PAGE_BYTES
from sentinel.simulator.served import served_spans
from tests.page_rows import by_page


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
    tensor = profile.extents["tensor"][profile.accesses["extent"]]
    used = np.stack([tensor, profile.accesses["layer"]], axis=1).astype(np.int64)
    home = _homes(plan, profile)
    placed, fast = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    others = 0
    for part in PageTouches(trace, found, used).owned():
        has_home = (part.owner >= 0) & (home[part.owner] >= 0)
        others += int(part.runs.npages[~has_home].sum())
        owner = part.owner[has_home]
        at = home[owner] // PAGE_BYTES + part.within[has_home]
        for of, page in by_page(part.runs.of(has_home)._replace(page=at)):
            quick = _tiers(plan, page, np.full(len(page), part.layer, np.int64)) == 0
            placed += np.bincount(owner[of], minlength=len(found))
            fast += np.bincount(owner[of][quick], minlength=len(found))
    by_tensor = {
        name: (int(all_), int(quick)) for name, all_, quick in zip(profile.names, placed, fast, strict=True) if all_
    }
    return Observed(int(placed.sum()), int(fast.sum()), others, by_tensor)


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
