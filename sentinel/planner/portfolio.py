"""`sentinel`: several candidates, every one simulated, the fastest one taken that a worse machine does not spoil.

On a machine with several slower tiers who gains from a faster one depends on what is fast already, and what is worth
fast memory depends on the slow tier. So all slow memory is taken for the slowest tier first, slow tiers are assigned to
what that leaves there, and the step is planned again with these. Candidates that leave the middle tiers alone are among
the results. Where slow memory cannot be used in place, see `fetched_plans`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np

from sentinel.core.cost import lost_ns_per_byte
from sentinel.core.machine import LESS, Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.planner.assemble import assemble, footprint_bytes, has_room, one_tier
from sentinel.planner.column_generation import (
    Effort,
    Ends,
    efforts_again,
    efforts_for,
    is_continued,
    is_large,
    optimized,
)
from sentinel.planner.decision import Decision, no_moves, whole_parts
from sentinel.planner.fetched_plans import fetched_plans
from sentinel.planner.slow_tier_assignment import Costs, SlowTierAssigner
from sentinel.planner.static_placements import best_fixed_plan
from sentinel.planner.window_bound import needs_windows
from sentinel.planner.workload import SlowTierOf, Workload, make_workload
from sentinel.simulator import simulate_lawful

WORSE_BY = 1.03
"""On a worse machine the plan that is taken needs at most 1.03 times what the best one that moves nothing needs."""

WORSE: dict[str, Callable[[Machine], Machine]] = {
    "half_links": lambda machine: machine.with_links_at(LESS),
    "worse": Machine.worse,
}
"""The machines on which a plan is tried, by what `details` calls them. Half the links alone are no milder than all of
it: where slow memory is dearer too, what moves nothing is slower as well."""

UNSURE = 1.25
"""What moves take from compute may be 1.25 times what was measured: a plan that moves is taken over one that moves
nothing only where it would be the faster one even then."""

Candidate = tuple[str, Plan]
"""A plan and its label."""


class Sentinel:
    """The default policy. `forgiving`: what a plan takes on a worse machine is looked at too; None: unless the step is
    so large that this takes too long."""

    name = "sentinel"

    def __init__(self, *, forgiving: bool | None = None) -> None:
        self._forgiving = forgiving is not False
        self._asked = forgiving is True

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The candidate that the simulator finds fastest; all in fast memory where that fits."""
        footprint = footprint_bytes(profile)
        if footprint <= machine.fast.capacity_bytes:
            return one_tier(profile, machine, 0, self.name)
        if len(machine.tiers) > 2:
            plans = tiered_plans(profile, machine, self.name, footprint)
            plans += [] if needs_windows(machine) else [(STAYS, best_fixed_plan(profile, machine, self.name))]
            plans = [(label, plan) for label, plan in plans if has_room(plan)]
            if plans:
                more = partial(_cautious_tiered, profile, machine, self.name, footprint)
                return best_of(plans, profile, machine, self.name, forgiving=self._forgiving, others=more)
        if needs_windows(machine):
            plans = fetched_plans(profile, machine, self.name, footprint)
            return best_of(plans, profile, machine, self.name)
        work = make_workload(profile, machine, footprint)
        ends: Ends = {}
        drawn = _drawn(work, efforts_for(work, drops=self._forgiving), machine, self.name, ends)
        plans = [each for each in drawn if has_room(each[1])]
        if not plans or self._asked or not is_large(work):
            plans.append((STAYS, best_fixed_plan(profile, machine, self.name)))
        more = partial(_cautious, work, self.name, ends)
        return best_of(plans, profile, machine, self.name, forgiving=self._forgiving, others=more)


STAYS = "by benefit"
"""Label of the candidate in which each page stays for good where it saves most."""


def _drawn(
    work: Workload, efforts: tuple[Effort, ...], machine: Machine, policy: str, ends: Ends | None = None
) -> Iterator[Candidate]:
    """The plans, on `machine`, of the decisions of one workload. `ends`: see `optimized`."""
    for label, decision in optimized(work, *efforts, ends=ends):
        drawn = assemble(
            decision, work.units, work.profile, machine, policy=policy, footprint_bytes=work.footprint_bytes
        )
        yield label, drawn


_CAUTION = (0.5, 0.625, 0.75, 1.0)
"""Shares of the way to half the links, by ratios, for which plans are made where worse machines spoil the fastest one,
in turn; then one for `Machine.worse`. Plans made for fewer links alone are faster on the machine as described than
those made for dearer slow memory too, and do as well on both. Less caution than that was never enough."""


def _cautious(work: Workload, policy: str, ends: Ends) -> Iterator[list[Candidate]]:
    """For each of these machines the plans that were made for it. `ends`: of the search for the machine as described,
    which that for fewer links continues; what makes other memory dearer weighs uses otherwise, and begins anew."""
    before = ends if is_continued(work) else None
    for share in _CAUTION:
        links = replace(work, machine=work.machine.with_links_at(LESS**share))  # all that is counted stays as it is
        yield _redrawn(work, links, f"links at {LESS**share:.0%}", policy, before)
    worse = make_workload(work.profile, work.machine.worse(), work.footprint_bytes)
    yield _redrawn(work, worse, "a worse machine", policy)


def _redrawn(work: Workload, other: Workload, name: str, policy: str, ends: Ends | None = None) -> list[Candidate]:
    """The plans, on the machine of `work`, that are made for that of `other`, as far as there is room."""
    plans = _drawn(other, efforts_again(work), work.machine, policy, ends)
    return [(f"{label}, for {name}", plan) for label, plan in plans if has_room(plan)]


def _cautious_tiered(profile: Profile, machine: Machine, policy: str, footprint: int) -> Iterator[list[Candidate]]:
    """The same where there are several slower tiers, which take several times as long to plan for: less and most
    caution only."""
    for share in (_CAUTION[0], _CAUTION[-1]):
        plans = tiered_plans(profile, machine.with_links_at(LESS**share), policy, footprint)
        yield [(f"{label}, for links at {LESS**share:.0%}", plan) for label, plan in plans if has_room(plan)]


def best_of(
    candidates: list[Candidate],
    profile: Profile,
    machine: Machine,
    policy: str,
    *,
    forgiving: bool = False,
    others: Callable[[], Iterator[list[Candidate]]] | None = None,
) -> Plan:
    """The fastest of the candidates by simulation, the first among equals; `details` tells of the others.

    `forgiving`: of those that on each machine of WORSE take at most WORSE_BY times what the candidate STAYS takes
    there, if it is among them; where the fastest one is not one of those, `others` are tried too, some at a time, until
    the fastest of these is. `details["worse"]` and `details["half_links"]` have the `step_ns` there and the `most_ns`
    that were allowed, `details["spoilt"]` what was faster.

    Where moves take time from compute, none is taken that would be no faster than the candidate STAYS if moves were
    UNSURE times as dear; `details["unsure"]` tells the `step_ns` of the fastest one, and with such moves `dearer_ns`.
    """
    tried = [_Tried(label, plan, profile, machine) for label, plan in candidates]
    stays = next((each for each in tried if each.label == STAYS), None)
    best = min(tried, key=_step_ns)
    details: dict[str, Any] = {}
    most_ns = {name: int(WORSE_BY * stays.step_on(name)) for name in WORSE} if stays is not None and forgiving else {}
    if not best.keeps(most_ns):
        for more in others() if others else ():
            found = [_Tried(label, plan, profile, machine) for label, plan in more]
            tried += found
            if found and min(found, key=_step_ns).keeps(most_ns):
                break  # what is made with more caution takes longer on the machine as described
        best = next(each for each in sorted(tried, key=_step_ns) if each.keeps(most_ns))
    if stays is not None and best.dearer_ns >= stays.step_ns > best.step_ns:
        details["unsure"] = {"step_ns": best.step_ns, "dearer_ns": best.dearer_ns}
        surer = (each for each in sorted(tried, key=_step_ns) if each is stays or each.dearer_ns < stays.step_ns)
        best = next(each for each in surer if each.keeps(most_ns))
    if most_ns:
        details |= {name: {"step_ns": best.step_on(name), "most_ns": most} for name, most in most_ns.items()}
        details["spoilt"] = {each.label: each.step_ns for each in tried if each.step_ns < best.step_ns}
    details |= {
        "chosen": best.label,
        "alternatives": {each.label: each.step_ns for each in tried if each.step_ns >= best.step_ns},
        "cases": best.run.counters.cases,
    }
    return best.plan.told(policy=policy, predicted_step_ns=best.step_ns, details={**best.plan.details, **details})


@dataclass(frozen=True, eq=False)
class _Tried:
    """A candidate, simulated on the machine as described, and on worse ones if asked."""

    label: str
    plan: Plan
    profile: Profile
    machine: Machine
    _steps: dict[str, int] = field(default_factory=dict)

    @cached_property
    def run(self) -> Run:
        return simulate_lawful(self.plan, self.profile, self.machine)

    @property
    def step_ns(self) -> int:
        return int(self.run.step_ns or 0)

    @cached_property
    def dearer_ns(self) -> int:
        if not any(link.takes_from_compute for link in self.machine.links):
            return self.step_ns
        dearer = self.machine.with_moves_dearer(UNSURE)
        return int(simulate_lawful(self.plan, self.profile, dearer).step_ns or 0)

    def keeps(self, most_ns: Mapping[str, int]) -> bool:
        """Whether it takes no longer than that on any of these machines of WORSE."""
        return all(self.step_on(name) <= most for name, most in most_ns.items())

    def step_on(self, name: str) -> int:
        """Its step in ns on a machine of WORSE."""
        if name not in self._steps:
            run = simulate_lawful(self.plan, self.profile, WORSE[name](self.machine))
            self._steps[name] = int(run.step_ns or 0)
        return self._steps[name]


_step_ns = attrgetter("step_ns")

_TieredCandidate = tuple[int, str, Plan, SlowTierOf]

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
    found = _drawn_tiered(works[-1], "slowest", policy, rough)
    rounds = ("again",) if is_large(works[-1]) else ("all slow", "again", "again")
    for number, label in enumerate(rounds, 1):
        slow_tiers = _slow_tiers_of_all(by_use, works[-1])
        if label == "again" and found:
            slow_tiers = min(found, key=lambda candidate: candidate[0])[3]
        work = make_workload(profile, machine, footprint_bytes, slow_tiers=slow_tiers)
        found += _drawn_tiered(work, f"{label} {number}", policy, fine)
    return [(label, plan) for _, label, plan, _ in found]


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


def _drawn_tiered(
    work: Workload, label: str, policy: str, assigners: list[tuple[SlowTierAssigner, bool]]
) -> list[_TieredCandidate]:
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
