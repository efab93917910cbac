"""Plans for machines with several slower tiers: the planner's own decisions, each with the best homes found for it.

Who gains from a faster home depends on what is fast already, and what is worth fast memory depends on the home. So
the planner thinks of all slow memory as the slowest first, homes are found for what it leaves there, and it plans anew
with these. Candidates that leave the middle tiers alone are among them: these never make a plan worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.homes import Costs, Housing
from sentinel.planner.workload import Homes, Workload, make_workload
from sentinel.simulator import simulate_lawful

Decide = Callable[[Workload], Iterator[tuple[str, Decision]]]
Candidate = tuple[int, str, Plan, Homes]

_SHOWN = (0.0, 1.0)
"""How much of the time that migrations take shows in the step, of which homes are found for each: it is not known."""


def tiered_plans(
    profile: Profile,
    machine: Machine,
    policy: str,
    footprint_bytes: int,
    decide: Decide,
    *,
    large: Callable[[Workload], bool],
) -> list[tuple[str, Plan]]:
    """Labelled plans that use the addressable slower tiers within their capacities; none if these do not suffice.

    A `large` workload is planned twice, any other three times: the homes of the best plan are found last.
    """
    tiers = [t for t in range(1, len(machine.tiers)) if machine.tiers[t].addressable]
    if not tiers:
        return []
    works = [make_workload(profile, machine, footprint_bytes, tier) for tier in tiers]
    by_use, by_link = _housings(works, tiers)
    rough = [(_alone(works[-1]), False), (by_use, False)]
    fine = [(by_use, False), (by_use, True), (by_link, True)]
    found = _drawn(works[-1], "slowest", policy, rough, decide)
    rounds = ("again",) if large(works[-1]) else ("all slow", "again", "again")
    for number, label in enumerate(rounds, 1):
        homes = _homes_of_all_slow(by_use, works[-1])
        if label == "again" and found:
            homes = min(found, key=lambda candidate: candidate[0])[3]
        work = make_workload(profile, machine, footprint_bytes, homes=homes)
        found += _drawn(work, f"{label} {number}", policy, fine, decide)
    return [(label, plan) for _, label, plan, _ in found]


def has_room(plan: Plan) -> bool:
    """Whether no tier ever holds more than its capacity."""
    return bool((plan.held_bytes <= np.array(plan.capacity_bytes)[:, None]).all())


def _alone(work: Workload) -> Housing:
    """All homes in one tier, that of the workload."""
    return Housing(work.units, work.profile, work.machine, [int(work.home.max(initial=1))])


def _housings(works: list[Workload], tiers: list[int]) -> list[Housing]:
    machine, first = works[0].machine, works[0]
    use_ns, short_ns = tuple(w.use_ns for w in works), tuple(w.short_ns for w in works)
    there_and_back = [sum(1e9 / machine.link(*way).bandwidth_bytes_per_s for way in ((t, 0), (0, t))) for t in tiers]
    return [
        Housing(
            first.units,
            first.profile,
            machine,
            tiers,
            Costs(first, use_ns, short_ns, np.array(there_and_back) * shown),
        )
        for shown in _SHOWN
    ]


def _homes_of_all_slow(housing: Housing, work: Workload) -> Homes:
    """The homes if fast memory served nothing."""
    nothing = Decision(whole_parts(work.units, 1), no_moves(), np.ones(len(work.units.short), np.int64))
    return housing.house(nothing)[1]


def _drawn(
    work: Workload, label: str, policy: str, housings: list[tuple[Housing, bool]], decide: Decide
) -> list[Candidate]:
    """The plans of all decisions with all homes, with their simulated times, that no tier is too small for."""
    found = []
    for name, decision in decide(work):
        seen: set[bytes] = set()
        for number, (housing, planned) in enumerate(housings):
            housed, homes = housing.house(decision, work.home if planned else None)
            told = housed.parts.tobytes() + housed.short_tier.tobytes() + bytes([housed.rest_tier])
            if told in seen:
                continue
            seen.add(told)
            plan = assemble(
                housed,
                work.units,
                work.profile,
                work.machine,
                policy=policy,
                footprint_bytes=work.footprint_bytes,
            )
            if has_room(plan):
                step_ns = simulate_lawful(plan, work.profile, work.machine).step_ns or 0
                found.append((step_ns, f"{name}, homes {label}.{number}", plan, homes))
    return found
