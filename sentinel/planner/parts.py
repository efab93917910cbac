"""Page ranges or whole tensors: which plan is better, and what the other would have been."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.parts import Parts
from sentinel.core.plan import Plan
from sentinel.core.profile import RANGE_DTYPE, Profile
from sentinel.simulator import simulate_lawful

LEAST_UNEVEN = 1e-3
"""Ranges are planned apart where this share of the touched bytes is elsewhere than even use would have it: planning
them takes as long again, and below this it cannot show."""


def worth_planning(parts: Parts, profile: Profile) -> bool:
    """Whether the ranges of `profile`, whose parts these are, can matter to a plan."""
    a, before = parts.profile.accesses, profile.accesses
    length = profile.n_layers
    whole = parts.whole[a["tensor"]]
    key = before["tensor"].astype(np.int64) * length + before["layer"]
    total = before["touched_bytes"][np.searchsorted(key, whole * length + a["layer"])]
    even = total * (parts.profile.tensors["nbytes"][a["tensor"]] / profile.tensors["nbytes"][whole])
    uneven = float(np.maximum(a["touched_bytes"] - even, 0).sum())
    return uneven >= LEAST_UNEVEN * float(before["touched_bytes"].sum()) and uneven > 0


def without_ranges(profile: Profile) -> Profile:
    """`profile` without what it knows of parts of tensors: each is taken to be used evenly."""
    return replace(profile, ranges=np.zeros(0, RANGE_DTYPE))


def better_of(ranged: Plan, whole: Plan, profile: Profile, machine: Machine) -> Plan:
    """The faster plan by prediction, and where they are as fast the one that serves more from fast memory.

    `details["page_ranges"]` of it has, for `ranged` and `whole` under equal fast memory, `fast_served_fraction`,
    `predicted_step_ns` and `migrated_bytes_per_step`; and `chosen`, one of the two names.
    """
    plans = {"ranged": ranged, "whole": whole}
    told = {name: _told(plan, profile, machine) for name, plan in plans.items()}
    name = min(plans, key=lambda n: (told[n]["predicted_step_ns"], -(told[n]["fast_served_fraction"] or 0)))
    return replace(plans[name], details={**plans[name].details, "page_ranges": {**told, "chosen": name}})


def _told(plan: Plan, profile: Profile, machine: Machine) -> dict[str, Any]:
    layers = simulate_lawful(plan, profile, machine).layers
    touched = int(layers["touched_bytes"].sum())
    return {
        "fast_served_fraction": int(layers["served_fast_bytes"].sum()) / touched if touched else None,
        "predicted_step_ns": plan.predicted_step_ns,
        "migrated_bytes_per_step": plan.migrated_bytes_per_step,
    }
