"""Candidates where a tier cannot be used in place, such as a file: what is there comes to fast memory for its use.

Where a tier in between is used in place, each unit that is not in fast memory is in that one or below, for good. Which
is tried in three ways: those that lose least, or most, a byte by being used there are there, as far as there is room;
or none is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.assemble import assemble, has_room
from sentinel.planner.column_generation import efforts_for, optimized
from sentinel.planner.decision import Decision, take_room
from sentinel.planner.fetching import just_in_time
from sentinel.planner.slow_tier_assignment import with_slow_tiers
from sentinel.planner.workload import SlowTierOf, Workload, make_workload


def fetched_plans(profile: Profile, machine: Machine, policy: str, footprint_bytes: int) -> list[tuple[str, Plan]]:
    """Labelled plans in which nothing is used in a tier that does not allow it, and no tier holds more than it has.
    Raises Infeasible if there is none."""
    middle = [tier for tier in machine.slower if machine.tiers[tier].addressable]
    away = next(tier for tier in machine.slower if tier not in middle)
    found = list[tuple[str, Plan]]()
    for label, work in _with_middle(profile, machine, footprint_bytes, middle, away) if middle else ():
        try:
            plans = _plans(work, machine, work.slow_tier, middle[0], policy)
        except Infeasible:
            continue
        found += [(f"{how}, {label} in between", plan) for how, plan in plans if has_room(plan)]
    work = make_workload(profile, _without(machine, away), footprint_bytes)
    slow_tier = np.full(len(work.units), away, np.int64) if middle else None
    try:
        plans = _plans(work, machine, slow_tier, away, policy)
    except Infeasible:
        if not found:
            raise
        return found
    found += [each for each in plans if has_room(each[1])]
    if not found:
        capacities = [tier.capacity_bytes for tier in machine.tiers]
        needed = min(int(np.maximum(plan.held_bytes.max(axis=1), capacities).sum()) for _, plan in plans)
        raise Infeasible(needed, sum(capacities), None)
    return found


def _plans(
    work: Workload, machine: Machine, slow_tier: NDArray[np.int64] | None, short_tier: int, policy: str
) -> list[tuple[str, Plan]]:
    """Of a workload whose units have these slow tiers (None: filled one after the other), and its short-lived tensors
    `short_tier`. Raises Infeasible."""
    found = []
    for label, decided in [("just in time", just_in_time(work)), *optimized(work, *efforts_for(work))]:
        decision = decided
        if slow_tier is not None:
            of_short = np.full(len(decided.short_tier), short_tier, np.int64)
            tiers = slow_tier[decided.parts["unit"]]
            decision = with_slow_tiers(decided, tiers, of_short, short_tier, len(machine.tiers) - 1)
        found.append((label, _drawn(decision, work, machine, policy)))
    return found


def _drawn(decision: Decision, work: Workload, machine: Machine, policy: str) -> Plan:
    footprint = work.footprint_bytes
    return assemble(decision, work.units, work.profile, machine, policy=policy, footprint_bytes=footprint)


def _without(machine: Machine, away: int) -> Machine:
    """The machine of the fast tier and the tier `away` alone."""
    links = (replace(machine.link(away, 0), source=1), replace(machine.link(0, away), target=1))
    return replace(machine, tiers=(machine.fast, machine.tiers[away]), links=links)


def _with_middle(
    profile: Profile, machine: Machine, footprint_bytes: int, middle: list[int], away: int
) -> Iterator[tuple[str, Workload]]:
    """The workload for each way of choosing slow tiers, and how it is told."""
    all_away = make_workload(profile, machine, footprint_bytes, away)
    works = [make_workload(profile, machine, footprint_bytes, tier) for tier in middle]
    taken = np.where(all_away.keeps_shorts, 0, all_away.short_bytes)  # in the first tier that is used in place
    for sign, told in ((1.0, "least used"), (-1.0, "most used")):
        unit = np.full(len(all_away.units), away, np.int64)
        for tier, work in zip(middle, works, strict=True):
            _fill(tier, work, sign, unit, away, taken if tier == middle[0] else np.zeros_like(taken))
        slow_tiers = SlowTierOf(unit, np.full(len(all_away.units.short), middle[0], np.int64))
        yield told, make_workload(profile, machine, footprint_bytes, slow_tiers=slow_tiers)


def _fill(tier: int, work: Workload, sign: float, unit: NDArray[np.int64], away: int, taken: NDArray[np.int64]) -> None:
    """Put as many of the units that are `away` into the tier as it has room for beside the (L,) bytes that are `taken`,
    by what their use there costs a byte."""
    units, capacity = work.units, work.machine.tiers[tier].capacity_bytes // PAGE_BYTES * PAGE_BYTES
    left = capacity - taken
    cost = np.bincount(work.use_unit, work.use_ns, len(units)) / np.maximum(units.nbytes, 1)
    rows = np.flatnonzero(unit == away)
    for row in rows[np.argsort(sign * cost[rows], kind="stable")].tolist():
        if take_room(left, [(int(units.start[row]), int(units.stop[row]))], int(units.nbytes[row])):
            unit[row] = tier
