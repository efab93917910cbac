"""A bound for plans where slow memory cannot be used in place: the optimum of the planner's own relaxation.

The program of `column_generation`, solved until no timeline would make the step shorter, counts no more than any plan
of this kind has to take: bytes of tensors, not of pages; room at the instants at which most is alive; moves that may be
cut into any pieces, a layer each. What rounding adds to sizes is added to the room. What its tie-breakers and its
solver may be off is taken from the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.column_generation import Effort, start_column_generation
from sentinel.planner.master import MOVE_COST
from sentinel.planner.workload import make_workload

_ROUNDS = 100
"""Most rounds of master and pricing."""

_TOLERANCE, _DUAL_NS = 1e-6, 0.1
"""What the solver's own tolerances make of a result at most: as a share, and for each class."""

_ALL = 1 << 62
"""Entries: every long-lived transient may share room by events, as in a plan."""


def fetched_bound_ns(profile: Profile, machine: Machine, limit_s: float, left_s: Callable[[], float]) -> int:
    """No plan's step is shorter than so many ns; 0 unless there is one slower tier, which is not used in place, and
    where that is not known after `limit_s` seconds of the solver. `left_s`: see `bound`. A `profile` without page
    ranges."""
    if len(machine.slower) > 1 or machine.tiers[machine.slower[0]].addressable:
        return 0
    t = profile.tensors
    rounding = int((-t["nbytes"][t["managed"]] % PAGE_BYTES).sum()) + PAGE_BYTES
    links = tuple(replace(link, lost_ns_per_move=0.0) for link in machine.links)  # one move may carry all bytes
    roomy = replace(machine, links=links).with_fast_capacity(machine.fast.capacity_bytes + rounding)
    work = make_workload(profile, roomy, 0)
    units = work.units
    nbytes = np.bincount(units.unit_of[units.tensors], t["nbytes"][units.tensors], len(units)).astype(np.int64)
    short = units.short[np.isin(units.short, profile.accesses["extent"])]  # what nobody uses may be away
    units = replace(units, nbytes=nbytes, short=short)
    work = replace(work, units=units, use_ns=work.use_ns * 0, short_ns=np.zeros(len(short)))
    generation = start_column_generation(work, Effort(0, 0, 0, pinned_entries=_ALL))
    master = generation.master
    for _ in range(_ROUNDS):
        seconds = left_s()
        master.stop_after(min(limit_s, master.spent_s + seconds))
        mix = master.solve() if seconds > 0 else None
        if mix is None or master.spent_s >= limit_s:
            return 0
        if not generation.columns.add(generation.pricer.best(mix.prices)[0]):
            moved = MOVE_COST * sum(work.per_s) / 1e12  # a link cannot carry more meanwhile
            off_ns = _DUAL_NS * len(generation.merged.units)
            return max(math.floor(mix.step_ns / (1 + moved) * (1 - _TOLERANCE) - off_ns), 0)
    return 0
