"""Plans for a slow tier that cannot be used in place, such as a file: every block is in fast memory when it is used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.episodes import Choice, Episodes, episodes_of, gaps, room_bytes
from sentinel.planner.intervals import choose, decide, interval_cuts, make_episodes
from sentinel.planner.published import lengths_to_try
from sentinel.planner.reserve import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload

_UNLIMITED = 1 << 62  # bytes


def all_addressable(machine: Machine) -> bool:
    """Whether every slower tier can be used in place."""
    return all(tier.addressable for tier in machine.tiers[1:])


def fetched_plans(profile: Profile, machine: Machine, policy: str, footprint_bytes: int) -> list[tuple[str, Plan]]:
    """Labelled plans in which nothing is used from slow memory. Raises Infeasible if there is none.

    What is not fetched all the time costs a migration; so intervals from one layer on, and single gaps, are tried.
    """
    work = make_workload(profile, machine, footprint_bytes)
    short = reserve(work, work.budget_bytes)
    if short.tier.any() or short.pool.extent > short.pool.cap:  # a packed pool may be larger than its fullest layer
        raise _infeasible(work)
    found = []
    for label, episodes in _candidates(work, short):
        free = work.budget_bytes - short.held_bytes
        if choose(work, episodes, free, np.arange(len(episodes))).all():
            decision = decide(work, episodes, np.ones(len(episodes), bool), short)
            drawn = assemble(decision, work.units, profile, machine, policy=policy, footprint_bytes=footprint_bytes)
            found.append((label, drawn))
    if not found:
        raise _infeasible(work)
    return found


def _infeasible(work: Workload) -> Infeasible:
    """With what suffices: for the whole pool of short-lived tensors, and for all else just in time beside it."""
    whole = reserve(work, _UNLIMITED)
    held = room_bytes(work, _just_in_time(work, np.ones(len(work.use_unit), bool))) + whole.held_bytes
    full = int(held.argmax())
    return Infeasible(max(int(held[full]), whole.pool.extent), work.machine.fast.capacity_bytes, full)


def _candidates(work: Workload, short: Reserve) -> Iterator[tuple[str, Episodes]]:
    yield "just in time", _just_in_time(work, np.ones(len(work.use_unit), bool))
    yield "shortest gaps bridged", _just_in_time(work, _parted(work, work.budget_bytes - short.held_bytes))
    for mil in lengths_to_try(work.n_layers):
        yield f"mil={mil}", make_episodes(work, interval_cuts(work.n_layers, mil))


def _just_in_time(work: Workload, parted: NDArray[np.bool_]) -> Episodes:
    """Out in the layer behind a use, back in the layer before the next, in the gaps that are parted and wide enough."""
    _, by, has_gap = gaps(work)
    after = work.use_layer + 1
    wide = has_gap & (by - after >= 2)
    return episodes_of(work, Choice(np.ones(len(by), bool), parted & wide, after, after + 1, by - 1, by))


def _parted(work: Workload, free: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Gaps left after bridging them from the shortest on while there is room beside all moves."""
    _, by, has_gap = gaps(work)
    after = work.use_layer + 1
    parted = has_gap & (by - after >= 2)
    left = free - room_bytes(work, _just_in_time(work, parted))
    nbytes = work.units.nbytes[work.use_unit]
    for row in np.flatnonzero(parted)[np.argsort((by - after)[parted], kind="stable")].tolist():
        layers = np.arange(after[row] + 1, by[row] - 1) % work.n_layers
        if not len(layers) or left[layers].min() >= nbytes[row]:
            left[layers] -= nbytes[row]
            parted[row] = False
    return parted
