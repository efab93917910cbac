"""A saved plan is tried on the slots of one step: whether the step was its own."""

from __future__ import annotations

from sentinel.core.plan import Plan
from sentinel.profiler.layers import LayerClock
from sentinel.session.job import Job


def mismatch(plan: Plan, clock: LayerClock, job: Job) -> str:
    """Why `plan` is not that of the step that `clock` followed; "" if it may be."""
    if not clock.in_step:
        return "its layers are others"
    present = job.storage_bytes()
    for slot in plan.slots:
        if slot.key is None and present.get(slot.name) != slot.nbytes:
            return f"{slot.name} has {present.get(slot.name, 'no')} bytes, not {slot.nbytes}"
    return ""
