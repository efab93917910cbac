"""The heart of `sentinel`: prices, columns, the best mix, made real. Beyond the paper; see docs/how-it-works.md.

Per use, what fast memory saves is weighed against the room and the link time that it costs there and then. Prices
of room and links by layer come from a descent and are made exact by a master program over the timelines that
were cheapest at some of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.columns import Columns
from sentinel.planner.decision import Decision
from sentinel.planner.descent import descend
from sentinel.planner.families import families
from sentinel.planner.master import Master, Mix
from sentinel.planner.realise import realise
from sentinel.planner.reserve import pool_ns, reserve
from sentinel.planner.shorts import MOST_ENTRIES, Stays, make_stays
from sentinel.planner.timelines import Pricer
from sentinel.planner.workload import Workload


@dataclass(frozen=True)
class Effort:
    """`rounds` of descent, of which the last `keep` give columns; at most `repriced` rounds of master and pricing.

    `dives`: rounds in which the share of units that stay is made whole. `stays`: long-lived units may stay, as far as
    so many entries go; 0: all of them count by layers. `whole_nodes`: units are not split, and the
    search for that is given so many nodes; 0: they may be split.
    """

    rounds: int
    keep: int
    repriced: int
    dives: int = 0
    stays: int = MOST_ENTRIES
    whole_nodes: int = 0


_UP, _DOWN = 0.75, 0.15
"""Parts of a unit from which on a dive rounds up, and up to which it rounds down, at once."""
_ENOUGH = 2e-4
"""Repricing ends when a round shortens the step by less than this share."""


def mixed(work: Workload, effort: Effort) -> tuple[Decision, dict[str, float]] | None:
    """The decision, and what the program predicts (`ns`); None if the solver fails."""
    machine = work.machine
    free = np.full(work.n_layers, float(work.budget_bytes))
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    if machine.flops_per_s is None:
        layer_ns = work.compute_ns + work.traffic_ns
    per_s = (float(machine.link(1, 0).bandwidth_bytes_per_s), float(machine.link(0, 1).bandwidth_bytes_per_s))
    merged, of = families(work) if not effort.whole_nodes else (work, np.arange(len(work.units)))
    pricer, columns, stays = Pricer(merged), Columns(merged), make_stays(work, merged, of, most_entries=effort.stays)
    descend(merged, pricer, columns, stays, free, layer_ns, per_s, effort.rounds, effort.keep)
    master = Master(merged, columns, stays, per_s)
    mix = _priced(master, pricer, columns, effort.repriced)
    if mix is None:
        return None
    mix = _dive(master, mix, np.bincount(of, minlength=len(merged.units)), effort.dives)
    pooled = _staying_units(work, of, stays, mix)
    short = reserve(work, work.budget_bytes, _slow_shorts(work, stays, mix), pooled)
    fixed = replace(merged, pool_ns=pool_ns(work, short))
    left = (work.budget_bytes - short.held_bytes).astype(np.float64)
    inside = np.bincount(of[short.pooled], work.units.nbytes[short.pooled], len(merged.units))
    master.settle(fixed, left, 1.0 - inside / np.maximum(merged.units.nbytes, 1))
    final = _priced(master, pricer, columns, effort.repriced)
    if effort.whole_nodes:
        final = master.solve_whole(effort.whole_nodes)
    if final is None:
        return None
    decision = realise(work, of, columns, final.share, short)
    return decision, {"ns": final.step_ns, "relaxed_ns": mix.step_ns, "columns": float(columns.n)}


def _dive(master: Master, mix: Mix, members: NDArray[np.int64], dives: int) -> Mix:
    """A mix in which of each family a whole number of units stays, or nearly: bounds are drawn closer in turn.

    A unit in the pool is there whole, since its addresses are shared. Near wholes are fixed, the nearest of the others
    is rounded up, and the rest finds its place around it.
    """
    stays = master.stays
    long = np.flatnonzero(stays.family >= 0)
    m = members[stays.family[long]].astype(np.float64)
    low, high = np.zeros(len(long)), np.ones(len(long))
    for _ in range(dives):
        count = mix.stay[long] * m
        part = count - np.floor(count + 1e-6)
        open_ = np.flatnonzero((part > 1e-3) & (high > low))
        if not len(open_):
            break
        up = open_[(part[open_] >= _UP) | (part[open_] == part[open_].max())]
        down = np.setdiff1d(open_[part[open_] <= _DOWN], up)
        low[up] = np.minimum(np.ceil(count[up]) / m[up], 1.0)
        high[down] = np.floor(count[down]) / m[down]
        master.limit_stays(long, low, high)
        deeper = master.solve()
        if deeper is None:  # no room for what was rounded up
            low[up], high[up] = 0.0, np.floor(count[up]) / m[up]
            master.limit_stays(long, low, high)
            deeper = master.solve()
        if deeper is None:
            break
        mix = deeper
    return mix


def _priced(master: Master, pricer: Pricer, columns: Columns, rounds: int) -> Mix | None:
    """Master and pricing in turn, until nothing new helps."""
    mix = master.solve()
    for _ in range(rounds):
        if mix is None or not columns.add(pricer.best(mix.prices)[0]):
            break
        better = master.solve()
        if better is None:
            break
        gained, mix = mix.step_ns - better.step_ns, better
        if gained < _ENOUGH * better.step_ns:
            break
    return mix


def _staying_units(work: Workload, of: NDArray[np.int64], stays: Stays, mix: Mix) -> NDArray[np.int64]:
    """Units that the mix keeps in fast memory all their life: of each family as many as come nearest to its share."""
    share = np.zeros(int(of.max(initial=-1)) + 1)
    long = stays.family >= 0
    share[stays.family[long]] = mix.stay[long]
    return _nearest(of, work.units.nbytes.astype(np.float64), share)


def _nearest(group: NDArray[np.int64], nbytes: NDArray[np.float64], share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Members, of each group as many as come nearest to its share of bytes, the largest first."""
    order = np.lexsort((np.arange(len(group)), -nbytes, group))
    sizes = nbytes[order]
    before = np.cumsum(sizes) - sizes
    before -= before[np.searchsorted(group[order], group[order])] if len(order) else 0
    total = np.bincount(group, nbytes, len(share))
    return order[before + sizes / 2 < (share * total)[group[order]]]


def _slow_shorts(work: Workload, stays: Stays, mix: Mix) -> NDArray[np.bool_]:
    """(short,) those that the mix leaves in slow memory: of each group the share that it says, the largest first."""
    t = work.profile.tensors[work.units.short]
    slow = np.zeros(len(t), bool)
    counted = np.flatnonzero(stays.of >= 0)
    slow[counted] = True
    slow[counted[_nearest(stays.of[counted], t["nbytes"][counted].astype(np.float64), mix.stay)]] = False
    return slow
