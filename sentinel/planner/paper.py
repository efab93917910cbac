"""`sentinel-2021`: our reading of the policy of the HPCA 2021 paper.

Fast memory holds in each migration interval what that interval uses; what a later one uses again stays while there is
room for it. Read literally the paper's goal charges a transfer of all fast memory and always picks the largest
interval. Here the plan of each interval length is simulated, and the fastest one is taken; ties go to the shorter
interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, Run
from sentinel.planner.assemble import assemble, footprint_bytes, one_tier
from sentinel.planner.decision import (
    Choice,
    Episodes,
    bridge_shortest_gaps,
    choose,
    decide,
    episodes_of,
    served_uses,
)
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful

_MOST_WORK = 500_000
"""Units times interval lengths that are simulated, some ten seconds: each length, where so many are enough. Of steps
that are larger a sample of lengths, of at least _LEAST_LENGTHS."""

_LEAST_LENGTHS = 40

_TESTED = 3
"""The 3 interval lengths whose steps are the shortest go through test and trial, which may take as many simulations
for one length as there are late promotions."""


class Sentinel2021:
    """As published. `mil`: a fixed interval length instead of the best one."""

    name = "sentinel-2021"

    def __init__(self, mil: int | None = None) -> None:
        self.mil = mil

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan with the interval length whose step is shortest; all in fast memory where that fits."""
        footprint = footprint_bytes(profile)
        if footprint <= machine.fast.capacity_bytes:
            return one_tier(profile, machine, 0, self.name)
        work = make_workload(profile, machine, footprint)
        short = reserve(work, work.budget_bytes)
        most = max(_MOST_WORK // max(len(work.units), 1), _LEAST_LENGTHS)
        lengths = [self.mil] if self.mil else lengths_to_try(work.n_layers, most)
        tried = [_Length(work, mil, short) for mil in lengths]
        best = sorted(tried, key=lambda length: length.step_ns)[:_TESTED]
        run, plan = min((length.tested() for length in best), key=lambda pair: int(pair[0].step_ns or 0))
        told = {"cases": run.counters.cases, "mil_step_ns": {str(each.mil): each.step_ns for each in tried}}
        return replace(plan, predicted_step_ns=run.step_ns, details={**plan.details, **told})


class _Length:
    """What one interval length makes of a step."""

    def __init__(self, work: Workload, mil: int, short: Reserve) -> None:
        self.mil, self._work, self._short = mil, work, short
        self.step_ns = int(self._run(self._drawn(self._episodes())).step_ns or 0)

    def tested(self) -> tuple[Run, Plan]:
        """The plan after test and trial, and its run."""
        episodes = self._episodes()
        starts = np.where(episodes.promote, episodes.held_from % self._work.n_layers, -1)
        everything = np.ones(len(episodes), bool)
        _, plan, run = test_and_trial(everything, starts, lambda kept: self._drawn(episodes, kept), self._run)
        return run, plan

    def _episodes(self) -> Episodes:
        return lazy_episodes(self._work, interval_cuts(self._work.n_layers, self.mil), self._short)

    def _drawn(self, episodes: Episodes, kept: NDArray[np.bool_] | None = None) -> Plan:
        work, told = self._work, {"mil": self.mil, "intervals": -(-self._work.n_layers // self.mil)}
        kept = np.ones(len(episodes), bool) if kept is None else kept
        decision = replace(decide(work, episodes, kept, self._short), details=told)
        return assemble(
            decision,
            work.units,
            work.profile,
            work.machine,
            policy=Sentinel2021.name,
            footprint_bytes=work.footprint_bytes,
        )

    def _run(self, plan: Plan) -> Run:
        return simulate_lawful(plan, self._work.profile, self._work.machine)


def lengths_to_try(n_layers: int, most: int = _LEAST_LENGTHS) -> list[int]:
    """Every interval length, or, of more than `most`, the small ones and ever sparser large ones."""
    if n_layers <= most:
        return list(range(1, n_layers + 1))
    return sorted({int(x) for x in np.rint(np.geomspace(1, n_layers, most))})


def lazy_episodes(work: Workload, cuts: NDArray[np.int64], short: Reserve) -> Episodes:
    """What is in fast memory and when, in as much as there is room for.

    First each interval gets what it uses and leaves it behind, as in `make_episodes`. Then what left and came back
    stays where there is room in between, what comes back soonest first: so nothing leaves but for the room that another
    interval needs.
    """
    choice = _eager_choice(work, cuts)
    free = work.budget_bytes - short.held_bytes
    granted = grant(work, episodes_of(work, choice), free)
    served = served_uses(work, choice, granted)
    follower, _, _ = work.gaps
    returns = choice.parted & served & served[follower]
    parted = bridge_shortest_gaps(work, returns, free, choice.left, choice.arrive)
    return episodes_of(work, replace(choice, fast=served, parted=parted))


def grant(work: Workload, episodes: Episodes, free: NDArray[np.int64]) -> NDArray[np.bool_]:
    """What is promoted, as the intervals come: first the earlier interval, in it the hottest bytes. What that takes of
    the (L,) bytes that are `free` is taken off."""
    density = episodes.value_ns / work.units.nbytes[episodes.unit]
    order = np.lexsort((episodes.unit, -density, episodes.begin % work.n_layers))
    return choose(work, episodes, free, order)


def interval_cuts(length: int, mil: int) -> NDArray[np.int64]:
    """First layer of each interval of `mil` layers; the last one may be shorter."""
    return np.arange(0, length, mil)


def make_episodes(work: Workload, cuts: NDArray[np.int64]) -> Episodes:
    """The episodes of every used unit if it is in fast memory in just those intervals that use it.

    Promoted while the interval before the use runs; demoted in mid-interval, from the layer after the last use to
    the interval's end. A gap too short for both is bridged.
    """
    return episodes_of(work, _eager_choice(work, cuts))


def _eager_choice(work: Workload, cuts: NDArray[np.int64]) -> Choice:
    _, next_layer, has_gap = work.gaps
    leave, left, arrive, arrived = _windows(work.use_layer, next_layer, cuts, work.n_layers)
    everywhere = np.ones(len(leave), bool)
    return Choice(everywhere, has_gap & (left <= arrive), leave, left, arrive, arrived)


def _windows(
    layer: NDArray[np.int64], next_layer: NDArray[np.int64], cuts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """After a use at `layer`: demote in [leave, left); before one at `next_layer`: promote in [arrive, arrived)."""
    at = np.repeat(cuts, np.diff(np.append(cuts, length)))
    after = np.append(np.append(cuts, length)[np.searchsorted(cuts, np.arange(length), side="right")], length)

    def cut_at(x: NDArray[np.int64]) -> NDArray[np.int64]:
        return at[x % length] + x // length * length

    leave = layer + 1
    left = after[leave % length] + leave // length * length
    arrived = cut_at(next_layer)
    return leave, left, cut_at(arrived - 1), arrived


_LATE = OUTCOMES.index("late")

_MOST_TRIALS = 16


def test_and_trial(
    granted: NDArray[np.bool_],
    starts: NDArray[np.int64],
    draw: Callable[[NDArray[np.bool_]], Plan],
    run: Callable[[Plan], Run],
) -> tuple[NDArray[np.bool_], Plan, Run]:
    """`granted` without the episodes that are better left in slow memory, with its plan and run.

    `starts`: layer in which an episode's promotion starts, -1 without one. In turn, from the layer that waits
    longest: leave out all promotions that are due there and late.
    """
    plan = draw(granted)
    best = run(plan)
    tried: set[int] = set()
    for _ in range(_MOST_TRIALS):
        waits = best.layers["stall_ns"]
        late = best.migrations[(best.migrations["outcome"] == _LATE) & (best.migrations["target"] == 0)]
        dues = {plan.migrations[i].due % plan.n_layers for i in _rows(plan, late)} - tried
        dues = {layer for layer in dues if waits[layer] > 0}
        if not dues:
            break
        layer = max(sorted(dues), key=lambda k: int(waits[k]))
        tried.add(layer)
        begun = {m.start for m in plan.migrations if m.target == 0 and m.due % plan.n_layers == layer}
        left = granted & ~np.isin(starts, sorted(begun))
        trial_plan = draw(left)
        trial = run(trial_plan)
        if (trial.step_ns or 0) < (best.step_ns or 0):
            granted, plan, best = left, trial_plan, trial
    return granted, plan, best


def _rows(plan: Plan, late: NDArray[np.void]) -> list[int]:
    """Indexes into `plan.migrations` of migrations of a run."""
    index = {(m.start, m.block, m.target): i for i, m in enumerate(plan.migrations)}
    return [index[(int(r["layer"]), int(r["block"]), int(r["target"]))] for r in late]
