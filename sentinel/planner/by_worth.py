"""Pages where each serves best for good: the addresses of all in fast memory, the pages that save most time in it.

A short-lived tensor is one thing to the planner, fast or slow; where it is larger than the room that is left, part of
it may be fast all the same, and the next tenant of these pages is too. Without migrations no page can do better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.simple import filled

_RUNS = 1024
"""Pages are placed in runs, at most so many: a plan has a block for each at most."""
_ALIKE = 1e-9
"""Runs whose worth differs by less, as a share of the greatest, count as alike."""


def worth_tiers(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.int64]:
    """(pages,) tier of each page of an all-fast plan if the pages that save most time are fast."""
    pages = plan.extent_bytes // PAGE_BYTES
    run = max(-(-pages // _RUNS), 1)
    heads = np.arange(0, pages, run)
    if not pages:
        return heads
    worth = np.add.reduceat(_page_ns(plan, profile, machine), heads) / np.diff(heads, append=pages)
    grade = np.rint(worth / max(float(worth.max()), 1e-300) / _ALIKE)
    order = np.argsort(-np.repeat(grade, run)[:pages], kind="stable")
    return filled(order, (machine.fast.capacity_bytes, *plan.capacity_bytes[1:]))


def _page_ns(plan: Plan, profile: Profile, machine: Machine) -> NDArray[np.float64]:
    """(pages,) extra time of a step if only this page is in the slowest tier; a tensor's is spread over its pages."""
    extra = slow_extra_ns(profile, machine, len(machine.tiers) - 1)
    of_tensor = np.bincount(profile.accesses["tensor"], extra, len(profile.names))
    tensor, offset, nbytes = (
        np.array([getattr(slot, name) for slot in plan.slots], np.int64) for name in ("tensor", "offset", "nbytes")
    )
    low, high = offset // PAGE_BYTES, -(-(offset + nbytes) // PAGE_BYTES)
    each = of_tensor[tensor] / (high - low)
    change = np.zeros(plan.extent_bytes // PAGE_BYTES + 1)
    np.add.at(change, low, each)
    np.add.at(change, high, -each)
    return change.cumsum()[:-1]
