"""What a job holds outside of its plan: bytes in ordinary memory, which no budget covers and every saving counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sentinel.core.plan import Plan, ring_sum
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.reports.grades import SMALL_SHARE
from sentinel.reports.setup import Setup

Counts = dict[str, int | None]


def coverage(profile: Profile | None) -> tuple[int | None, int | None]:
    """(managed bytes, all bytes) alive in the layer in which most is alive."""
    if profile is None or not len(profile.tensors):
        return None, None
    managed, live = live_by_layer(profile)
    peak = int(live.argmax())
    return int(managed[peak]), int(live[peak])


def live_by_layer(profile: Profile) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """(L,) managed bytes alive in each layer, and (L,) all bytes alive."""
    rows = profile.tensors
    per = ring_sum(rows["managed"].astype(np.int64), rows["start"], rows["stop"], rows["nbytes"], 2, profile.n_layers)
    return per[1], per.sum(axis=0)


def job_memory(
    profile: Profile | None, plan: Plan | None, executed: Run | None, unmanaged: int | None, setup: Setup
) -> Counts:
    """The job's bytes, planned or not; None where unknown. `unmanaged`: most that fell back to malloc at one time.

    `outside_bytes`: alive outside of the plan in the layer in which most is alive: tensors that stayed in place, and
    what was not managed. Without a profile: what stayed in place, and `unmanaged`. Of bytes that fell back to malloc in
    applied steps, those beyond what did in the profiled step had their place in the plan (`missed`): they are in its
    footprint already, and are fast bytes beside its budget. So no byte counts twice.
    `job_bytes`: of the footprint and outside. `job_fast_bytes`: the budget, as far as it is used, and all that is in
    ordinary memory.
    """
    managed, live = coverage(profile)
    missed = 0
    if profile is not None and managed is not None and live is not None:
        outside: int | None = live - managed
        if executed is not None and unmanaged is not None:
            missed = max(unmanaged - profile.unmanaged_peak_bytes, 0)
    elif executed is not None or setup.in_place:
        outside = sum(nbytes for _, nbytes, _ in setup.in_place) + (unmanaged or 0)
    else:
        outside = None
    found: Counts = {"outside_bytes": outside, "job_bytes": None, "job_fast_bytes": None}
    if plan is not None and plan.footprint_bytes and outside is not None:
        found["job_bytes"] = plan.footprint_bytes + outside
        budget = min(plan.capacity_bytes[0], plan.footprint_bytes)
        found["job_fast_bytes"] = min(budget + outside + missed, plan.footprint_bytes + outside)
    return found


def compared(h: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """(fast bytes, all bytes, of both outside of the plan) of a headline, as readers compare them; None where unknown.

    What is outside counts from a thousandth of the footprint on.
    """
    budget, footprint = h.get("fast_capacity_bytes"), h.get("peak_bytes")
    if budget is None or not footprint:
        return None
    planned, fast, whole = min(budget, footprint), h.get("job_fast_bytes"), h.get("job_bytes")
    if fast is None or whole is None:
        return planned, footprint, 0
    outside = max(h.get("outside_bytes") or 0, fast - planned)
    return (fast, whole, outside) if outside >= SMALL_SHARE * footprint else (planned, footprint, 0)
