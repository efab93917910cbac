"""`sentinel-2021`: the policy of the HPCA 2021 paper, with its goal repaired.

Fast memory holds in each migration interval what that interval uses. Read literally the paper's goal charges a transfer
of all fast memory and always picks the largest interval. Here an interval length costs the time by which the next
interval's bytes take longer to come than this interval lasts, and the extra time of what stays in slow memory while
used. Ties go to the shorter interval.
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
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import choose, decide
from sentinel.planner.episodes import Choice, Episodes, episodes_of, gaps
from sentinel.planner.fixed_placement import footprint_bytes, one_tier
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful

_MOST_LENGTHS = 40

_TESTED = 3
"""So many interval lengths of least cost are tested; the goal is an estimate."""


class Sentinel2021:
    """As published. `mil`: a fixed interval length instead of the best one."""

    name = "sentinel-2021"

    def __init__(self, mil: int | None = None) -> None:
        self.mil = mil

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan with the interval length of least cost; all in fast memory where that fits."""
        footprint = footprint_bytes(profile)
        if footprint <= machine.fast.capacity_bytes:
            return one_tier(profile, machine, 0, self.name)
        work = make_workload(profile, machine, footprint)
        short = reserve(work, work.budget_bytes)
        lengths = [self.mil] if self.mil else lengths_to_try(work.n_layers)
        tried = [(interval_cost_ns(work, mil, short), mil) for mil in lengths]
        found = [self._tested(work, mil, short) for _, mil in sorted(tried)[:_TESTED]]
        run, plan = min(found, key=lambda pair: int(pair[0].step_ns or 0))
        cases = run.counters.cases
        told = {**plan.details, "cases": cases, "mil_cost_ns": {str(mil): cost for cost, mil in tried}}
        return replace(plan, predicted_step_ns=run.step_ns, details=told)

    def _tested(self, work: Workload, mil: int, short: Reserve) -> tuple[Run, Plan]:
        """The plan of one interval length after test and trial."""
        profile, machine = work.profile, work.machine
        episodes = make_episodes(work, interval_cuts(work.n_layers, mil))
        told = {"mil": mil, "intervals": -(-work.n_layers // mil)}

        def draw(granted: NDArray[np.bool_]) -> Plan:
            decision = replace(decide(work, episodes, granted, short), details=told)
            return assemble(
                decision, work.units, profile, machine, policy=self.name, footprint_bytes=work.footprint_bytes
            )

        starts = np.where(episodes.promote, episodes.held_from % work.n_layers, -1)
        granted = grant(work, episodes, short)
        _, plan, run = test_and_trial(granted, starts, draw, lambda plan: simulate_lawful(plan, profile, machine))
        return run, plan


def lengths_to_try(n_layers: int) -> list[int]:
    """Every interval length, or, of many, the small ones and ever sparser large ones."""
    if n_layers <= _MOST_LENGTHS:
        return list(range(1, n_layers + 1))
    spread = np.geomspace(1, n_layers, _MOST_LENGTHS)
    return sorted({int(x) for x in np.rint(spread)})


def grant(work: Workload, episodes: Episodes, short: Reserve) -> NDArray[np.bool_]:
    """What is promoted, as the intervals come: first the earlier interval, in it the hottest bytes."""
    free = work.budget_bytes - short.held_bytes
    density = episodes.value_ns / work.units.nbytes[episodes.unit]
    order = np.lexsort((episodes.unit, -density, episodes.begin % work.n_layers))
    return choose(work, episodes, free, order)


def interval_cost_ns(work: Workload, mil: int, short: Reserve) -> int:
    """The repaired goal for one interval length: exposed transfers and slow accesses, in ns."""
    cuts = interval_cuts(work.n_layers, mil)
    episodes = make_episodes(work, cuts)
    granted = grant(work, episodes, short)
    slow = float(work.use_ns.sum() - episodes.value_ns[granted].sum())
    span = np.add.reduceat(np.maximum(work.compute_ns, work.traffic_ns), cuts)
    exposed = 0.0
    links = (
        (work.machine.link(1, 0), episodes.promote, episodes.held_from),
        (work.machine.link(0, 1), episodes.demote, episodes.end),
    )
    for link, wanted, start in links:
        rows = np.flatnonzero(granted & wanted)
        interval = np.searchsorted(cuts, start[rows] % work.n_layers, side="right") - 1
        nbytes = work.units.nbytes[episodes.unit[rows]].astype(np.float64)
        incoming = np.bincount(interval, nbytes, len(cuts)) * (1e9 / link.bandwidth_bytes_per_s)
        exposed += float(np.maximum(incoming - span, 0).sum())
    return int(exposed + slow)


def interval_cuts(length: int, mil: int) -> NDArray[np.int64]:
    """First layer of each interval of `mil` layers; the last one may be shorter."""
    return np.arange(0, length, mil)


def make_episodes(work: Workload, cuts: NDArray[np.int64]) -> Episodes:
    """The episodes of every used unit if it is in fast memory in just those intervals that use it.

    Promoted while the interval before the use runs; demoted in mid-interval, from the layer after the last use to
    the interval's end. A gap too short for both is bridged.
    """
    _, next_layer, has_gap = gaps(work)
    leave, left, arrive, arrived = _windows(work.use_layer, next_layer, cuts, work.n_layers)
    everywhere = np.ones(len(leave), bool)
    return episodes_of(work, Choice(everywhere, has_gap & (left <= arrive), leave, left, arrive, arrived))


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
