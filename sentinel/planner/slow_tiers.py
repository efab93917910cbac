"""Plans for slow memory that has several tiers, or one that cannot be used in place.

Several: who gains from a faster tier depends on what is fast already, and what is worth fast memory depends on the slow
tier. So the planner takes all slow memory for the slowest tier first, assigns slow tiers to what it leaves there, and
plans again with these. Candidates that leave the middle tiers alone are among the results.

Not used in place, such as a file: every block is in fast memory when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import lost_ns_per_byte
from sentinel.core.errors import Infeasible
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.column_generation import efforts_for, is_large, optimized
from sentinel.planner.decision import Decision, choose, decide, no_moves, whole_parts
from sentinel.planner.episodes import Choice, Episodes, bridge_shortest_gaps, episodes_of, gaps, room_bytes
from sentinel.planner.paper import interval_cuts, lengths_to_try, make_episodes
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.slow_tier_assignment import Costs, SlowTierAssigner
from sentinel.planner.workload import SlowTierOf, Workload, make_workload
from sentinel.simulator import simulate_lawful

Candidate = tuple[int, str, Plan, SlowTierOf]

_SHOWN = (0.0, 1.0)
"""Shares of migration time that lengthen the step. The true one is not known, so slow tiers are assigned for each."""


def tiered_plans(
    profile: Profile,
    machine: Machine,
    policy: str,
    footprint_bytes: int,
) -> list[tuple[str, Plan]]:
    """Labelled plans that use the addressable slower tiers within their capacities; none if these do not suffice.

    A large workload is planned twice, any other three times: the slow_tiers of the best plan are found last.
    """
    tiers = [t for t in range(1, len(machine.tiers)) if machine.tiers[t].addressable]
    if not tiers:
        return []
    works = [make_workload(profile, machine, footprint_bytes, tier) for tier in tiers]
    by_use, by_link = _assigners(works, tiers)
    rough = [(_alone(works[-1]), False), (by_use, False)]
    fine = [(by_use, False), (by_use, True), (by_link, True)]
    found = _drawn(works[-1], "slowest", policy, rough)
    rounds = ("again",) if is_large(works[-1]) else ("all slow", "again", "again")
    for number, label in enumerate(rounds, 1):
        slow_tiers = _slow_tiers_of_all(by_use, works[-1])
        if label == "again" and found:
            slow_tiers = min(found, key=lambda candidate: candidate[0])[3]
        work = make_workload(profile, machine, footprint_bytes, slow_tiers=slow_tiers)
        found += _drawn(work, f"{label} {number}", policy, fine)
    return [(label, plan) for _, label, plan, _ in found]


def has_room(plan: Plan) -> bool:
    """Whether no tier ever holds more than its capacity."""
    return bool((plan.held_bytes <= np.array(plan.capacity_bytes)[:, None]).all())


def _alone(work: Workload) -> SlowTierAssigner:
    """All slow_tiers in one tier, that of the workload."""
    return SlowTierAssigner(work.units, work.profile, work.machine, [int(work.slow_tier.max(initial=1))])


def _assigners(works: list[Workload], tiers: list[int]) -> list[SlowTierAssigner]:
    machine, first = works[0].machine, works[0]
    use_ns, short_ns = tuple(w.use_ns for w in works), tuple(w.short_ns for w in works)
    there_and_back = [sum(1e9 / machine.link(*way).bandwidth_bytes_per_s for way in ((t, 0), (0, t))) for t in tiers]
    lost = lost_ns_per_byte(machine)[:, tiers].sum(axis=0)
    return [
        SlowTierAssigner(
            first.units,
            first.profile,
            machine,
            tiers,
            Costs(first, use_ns, short_ns, np.array(there_and_back) * shown + lost),
        )
        for shown in _SHOWN
    ]


def _slow_tiers_of_all(assigner: SlowTierAssigner, work: Workload) -> SlowTierOf:
    """The slow_tiers if fast memory served nothing."""
    nothing = Decision(whole_parts(work.units, 1), no_moves(), np.ones(len(work.units.short), np.int64))
    return assigner.assign(nothing)[1]


def _drawn(work: Workload, label: str, policy: str, assigners: list[tuple[SlowTierAssigner, bool]]) -> list[Candidate]:
    """The plans of all decisions with all slow_tiers, with their simulated times, that no tier is too small for."""
    found = []
    for name, decision in optimized(work, *efforts_for(work)):
        seen: set[bytes] = set()
        for number, (assigner, planned) in enumerate(assigners):
            assigned, slow_tiers = assigner.assign(decision, work.slow_tier if planned else None)
            told = assigned.parts.tobytes() + assigned.short_tier.tobytes() + bytes([assigned.rest_tier])
            if told in seen:
                continue
            seen.add(told)
            plan = assemble(
                assigned,
                work.units,
                work.profile,
                work.machine,
                policy=policy,
                footprint_bytes=work.footprint_bytes,
            )
            if has_room(plan):
                step_ns = simulate_lawful(plan, work.profile, work.machine).step_ns or 0
                found.append((step_ns, f"{name}, slow tiers {label}.{number}", plan, slow_tiers))
    return found


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
    return bridge_shortest_gaps(work, parted, left, after + 1, by - 1)
