"""A bound that no plan of this kind can pass: a linear relaxation, by its prices.

Of this kind: a plan that keeps the laws of the model, whole layers and room on both sides of a move among them. A
runtime that freed and served page by page within a layer could pass it; `exchange_bound` is what that one cannot pass.

Relaxed: every tensor may be split at will, and each part has a fate of its own; births are wherever one likes. Kept:
the laws of room, the links' bandwidth, the ring, and that a part in flight is held on both sides and served by the
slower one (`simulator.served`). So what fast memory serves in layer k stays in it until layer k + 1 begins, and
each part that moves is on its way in at least one layer. Its window may be cut down to the one layer in which
its bytes cross the link: that frees room and serves no use worse.

y[g, k] is the fraction of group g that may move and that fast memory serves all through layer k; p[g, k] is promoted
from when layer k begins to compute until layer k + 1 does, T[k] the time that takes; d[g, k] = y[g, k - 1] +
p[g, k - 1] - y[g, k] is demoted meanwhile. y + p + d hold room in layer k, so y[g, k - 1] + p[g, k - 1] + p[g, k] do.
q[g] is born in fast memory and never moves. What may move holds room in all layers of its life (law 1), what never
moves shares it by events. What a simulated run did is a solution; so the least sum of T is at most the time of
any run. With several slower tiers see `bound_program`.

What moves takes from compute is no part of T here but of the cost: a byte moved costs what it takes (`core.cost`), and
links carry on meanwhile. Bytes that move while a layer waits take nothing more, but the wait is as long. What each move
costs by itself is left out: any number of tensors may move as one.

Any prices prove a bound (`Certifier`). Those of the planner's own relaxation are nearly the best ones and take a
fraction of the time; where they leave more than little open, HiGHS solves the program itself, by interior point
without crossover (4-7 times faster than simplex). Its tolerances need no trust: its prices prove too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns
from sentinel.core.extents import extents_as_tensors
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins, rest_of
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.bound_program import ExchangeProgram, Program, least_extra_ns, make_groups
from sentinel.planner.column_generation import efforts_for, start_column_generation
from sentinel.planner.fetched_bound import fetched_bound_ns
from sentinel.planner.linear_program import solver_of
from sentinel.planner.window_bound import needs_windows, profile_window_bound_ns
from sentinel.planner.workload import make_workload

_ROUNDING = 1e-9
"""Taken off a sum of floating-point numbers, as a share."""

_CLOSED, _NEAR, _TIGHT = 1e-4, 1e-3, 5e-3
"""Prices that leave so little of the step open are the last ones; are not handed on to the solver; are not loose."""

_ROUNDS = 100
"""Most rounds of master and pricing."""


@dataclass(frozen=True)
class Bound:
    """`step_ns`: no plan's step is shorter. `loose`: why it may be far below the best plan; empty if it is tight."""

    step_ns: int
    loose: str = ""


@dataclass(frozen=True)
class Proof:
    """`ms` that no plan stays below; `open`, the share by which the best relaxed mix known takes longer; `spent_s`."""

    ms: float
    open: float
    spent_s: float


def _any_s() -> float:
    return math.inf


def bound(
    profile: Profile,
    machine: Machine,
    *,
    time_limit_s: float = 60.0,
    pins: Pins | None = None,
    left_s: Callable[[], float] = _any_s,
) -> Bound:
    """The bound of every plan within `machine.fast.capacity_bytes`; a loose one where the solver needs longer.

    `time_limit_s`: of the solver, by its own clock. `left_s`: the seconds that are left, for whoever has a clock: asked
    before each of the solver's runs, which gets no more, and where none are left does not begin. `pins`: of those
    plans that keep them. Raises UsageError where these do not fit.
    """
    if pins:
        rest = rest_of(profile, machine, pins)
        profile, machine = rest.profile, rest.machine
    profile = extents_as_tensors(profile)
    least, certifier = _certifier(profile, machine, Program)
    least = max(least, profile_window_bound_ns(profile, machine))
    fetched = fetched_bound_ns(profile, machine, time_limit_s, left_s) if needs_windows(machine) else 0
    least = max(least, fetched)
    if certifier is None or fetched:
        return Bound(least)
    if needs_windows(machine) and len(machine.slower) == 1:
        return Bound(least, f"the solver did not end within {time_limit_s:g} s; this is what windows prove")
    proof = by_prices(certifier, profile, machine, time_limit_s, left_s)
    found_ms, loose = proof.ms, ""
    if proof.open > _NEAR:
        seconds = min(time_limit_s - proof.spent_s, left_s())
        solved = _solve(certifier, seconds) if seconds > 0 else None
        cut = f"the solver did not end within {time_limit_s:g} s; this is what the prices found by then prove"
        solved_ms, why = solved or (0.0, cut)
        found_ms, loose = max(found_ms, solved_ms), why if proof.open > _TIGHT else ""
    footprint = int(profile.tensors["nbytes"][profile.tensors["managed"]].sum())
    if any(0 < tier.capacity_bytes < footprint for tier in machine.tiers[1:-1]) and not loose:
        loose = "what a middle tier holds may change from layer to layer at no cost in it"
    return Bound(max(int(found_ms * 1e6 * (1 - _ROUNDING)), least), loose)


def exchange_bound(profile: Profile, machine: Machine, *, time_limit_s: float = 60.0) -> Bound:
    """The looser bound, of plans whose moves hold room on one side only: never above `bound`.

    Pages would have to change places within a layer, each promotion in the room of a demotion just ahead of it. What
    lies between this and `bound` is what such a runtime could gain. By prices only: without one slower tier that is
    used in place it is the time with all in fast memory, and called loose.
    """
    profile = extents_as_tensors(profile)
    least, certifier = _certifier(profile, machine, ExchangeProgram)
    if certifier is None:
        return Bound(least)
    proof = by_prices(certifier, profile, machine, time_limit_s)
    loose = "" if proof.open <= _TIGHT else "its prices leave more than half a percent open"
    return Bound(max(int(proof.ms * 1e6 * (1 - _ROUNDING)), least), loose)


def _certifier(profile: Profile, machine: Machine, kind: type[Program]) -> tuple[int, Certifier | None]:
    """(ns with all in fast memory, what proves more; None where that is the bound)."""
    compute, traffic = base_ns(profile, machine)
    least = int(np.maximum(compute, traffic).sum() * (1 - _ROUNDING))
    *middle, extra = least_extra_ns(profile, machine)
    groups = make_groups(profile, extra, machine.fast.capacity_bytes)
    if not len(groups.nbytes) or not extra.any():
        return least, None
    program = kind(groups, profile, machine, compute, traffic)
    for tier, (here, behind) in enumerate(pairwise([*middle, extra]), 1):
        program.middle_tier(profile, sum(t.capacity_bytes for t in machine.tiers[1 : tier + 1]), here, behind)
    return least, Certifier(program)


def by_prices(
    certifier: Certifier, profile: Profile, machine: Machine, limit_s: float, left_s: Callable[[], float] = _any_s
) -> Proof:
    """What the prices of the planner's own relaxation prove, round by round until they change little.

    `limit_s`: of the solver, in all rounds. `left_s`: see `bound`.
    """
    slow = [tier for tier in range(1, len(machine.tiers)) if machine.tiers[tier].capacity_bytes >= PAGE_BYTES]
    if len(slow) != 1 or not machine.tiers[slow[0]].addressable:
        return Proof(0.0, np.inf, 0.0)  # that relaxation is of one slower tier
    links = tuple(replace(link, lost_ns_per_move=0.0) for link in machine.links)  # one move may carry all bytes
    work = make_workload(profile, replace(machine, links=links), 0, slow[0])
    work = replace(work, exchanges=certifier.program.exchanges)
    generation = start_column_generation(work, efforts_for(work)[0])
    best, left = 0.0, np.inf
    for _ in range(_ROUNDS):
        seconds = left_s()
        generation.master.stop_after(min(limit_s, generation.master.spent_s + seconds))
        mix = generation.master.solve() if seconds > 0 else None
        if mix is None:
            break
        best = max(best, certifier.least_ms(certifier.program.spread(mix.duals)))
        left = mix.step_ns / 1e6 / best - 1 if best > 0 else np.inf
        done = left <= _CLOSED or generation.master.spent_s >= limit_s
        if done or not generation.columns.add(generation.pricer.best(mix.prices)[0]):
            break
    return Proof(best, left, generation.master.spent_s)


def _solve(certifier: Certifier, time_limit_s: float) -> tuple[float, str] | None:
    """(ms that the solver's prices prove, why loose); None if it does not end in time."""
    cost, low, high = certifier.program.columns()
    solver = solver_of(
        cost,
        (low, high),
        (certifier.low, certifier.high),
        [(certifier.row, certifier.column, certifier.value)],
        solver="ipm",
        run_crossover="off",
        time_limit=time_limit_s,
        ipm_optimality_tolerance=1e-6,
    )
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kTimeLimit:
        return None
    found = solver.getSolution()
    proved = certifier.least_ms(np.array(found.row_dual)) if found.dual_valid else 0.0
    told_ms = float(solver.getInfo().objective_function_value)
    if proved >= told_ms * (1 - _TIGHT):
        return proved, ""
    return proved, f"the solver ended with {solver.modelStatusToString(status)}; its prices prove less than it says"


class Certifier:
    """What prices prove of one program: whatever time, room and links cost, no plan takes less than the sum of
    everyone's cheapest fates.

    Lagrange: rows that join groups leave the program and their prices enter its cost; what is left falls apart into
    one shortest path a group, fast or slow in each layer of its life. The sum is a bound whatever the prices are, at
    the best ones the optimum of the program itself. So a solver need not be believed: what it ends with is prices, and
    these prove.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.row, self.column, self.value = program.matrix()
        self.low, self.high = np.concatenate(program.low), np.concatenate(program.high)
        self.local = np.concatenate(program.local)
        self.cost = program.columns()[0]

    def least_ms(self, duals: NDArray[np.float64]) -> float:
        """ms that no solution stays below, from (rows,) duals of any quality; those of local rows are not read."""
        program, length = self.program, self.program.length
        price = self._allowed(duals)
        reduced = self.cost - np.bincount(self.column, self.value * price[self.row], program.n_columns)
        paid = np.flatnonzero(price)
        value = float((price[paid] * np.where(price > 0, self.low, self.high)[paid]).sum())
        value += float((np.maximum(reduced[:length], 0.0) * program.least_ms).sum())
        if program.most_saved_ms:
            most = np.concatenate(program.most_saved_ms)
            value += float((np.minimum(reduced[-len(most) :], 0.0) * most).sum())
        return value + float(self._fates(reduced).sum())

    def _allowed(self, duals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Prices of the sign that each row allows, and no layer's time worth more than itself."""
        price = np.where(self.local | ~np.isfinite(duals), 0.0, duals)
        price = np.where(np.isinf(self.low), np.minimum(price, 0.0), price)
        price = np.where(np.isinf(self.high), np.maximum(price, 0.0), price)
        layer = np.flatnonzero(self.column < self.program.length)
        worth = self.value[layer] * price[self.row[layer]]
        total = np.bincount(self.column[layer], np.maximum(worth, 0.0), self.program.length)
        scale = np.ones(len(price))
        scale[self.row[layer]] = 1.0 / np.maximum(total, 1.0)[self.column[layer]]
        return np.asarray(price * scale, np.float64)

    def _fates(self, reduced: NDArray[np.float64]) -> NDArray[np.float64]:
        """(groups,) cost of the cheapest: always slow, always fast, or a path; round the ring for what persists."""
        program, groups = self.program, self.program.groups
        n, width = len(groups.nbytes), groups.stop - groups.start
        stay = reduced[program.length : program.begin].copy()
        stay[program.no_q] = 0.0
        here = reduced[program.begin : program.begin + program.n_y].copy()
        here[program.no_y - program.begin] = np.inf
        can = program.promotion >= 0
        up = np.full(program.n_y, np.inf)
        up[can] = reduced[program.promotion[can]]
        gift = np.bincount(program.group_of[can], np.minimum(up[can], 0.0), n)
        up = np.maximum(up, 0.0)
        born_slow = self._path(here, up, width, ~groups.persistent, fast=False)
        born_fast = self._path(here, up, width, ~groups.persistent, fast=True)
        return np.asarray(np.minimum(np.minimum(born_slow, born_fast), np.minimum(stay, 0.0)) + gift, np.float64)

    def _path(
        self,
        here: NDArray[np.float64],
        up: NDArray[np.float64],
        width: NDArray[np.int64],
        free: NDArray[np.bool_],
        *,
        fast: bool,
    ) -> NDArray[np.float64]:
        """(groups,) cost of the cheapest path that begins fast, or slow, and ends so unless its end is `free`.

        `here`: of being fast in a layer; `up`: of a promotion in it for the next. Leaving is priced in both.
        """
        first = self.program.first[:-1] - self.program.begin
        slow_cost = np.full(len(width), np.inf if fast else 0.0)
        fast_cost = here[first] if fast else np.full(len(width), np.inf)
        order = np.argsort(-width, kind="stable")
        for age in range(1, int(width.max(initial=0))):
            some = order[: int(np.searchsorted(-width[order], -age))]
            at = first[some] + age
            before_slow, before_fast = slow_cost[some], fast_cost[some]
            slow_cost[some] = np.minimum(before_slow, before_fast)
            fast_cost[some] = np.minimum(before_fast, before_slow + up[at - 1]) + here[at]
        slow_end, arrived = np.minimum(slow_cost, fast_cost), slow_cost + up[first + width - 1]
        return np.asarray(np.where(free | (not fast), slow_end, np.minimum(fast_cost, arrived)), np.float64)
