"""The heart of `sentinel`: prices, columns, the best mix, made real. Beyond the paper; see docs/how-it-works.md.

Per use, what fast memory saves is weighed against the room and the link time that it costs there and then. Prices
of room and links by layer come from a descent and are made exact by a master program over the timelines that
were cheapest at some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.columns import Columns
from sentinel.planner.decision import Decision
from sentinel.planner.descent import descend
from sentinel.planner.dive import Dive
from sentinel.planner.families import families
from sentinel.planner.master import Master, Mix
from sentinel.planner.realise import realise
from sentinel.planner.settle import Settled, Settler
from sentinel.planner.shorts import MOST_ENTRIES, Stays, make_stays
from sentinel.planner.timelines import Pricer
from sentinel.planner.workload import Workload


@dataclass(frozen=True)
class Effort:
    """`rounds` of descent, of which the last `keep` give columns; at most `repriced` rounds of master and pricing.

    `dives`: after how many rounds, in which the share of units that stay is made whole, a mix is settled.
    `stays`: long-lived units may stay, as far as so many entries go; 0: all of them count by layers. `trials` of
    repair of the best settled mix. `whole_nodes`: units are not split, and the search for that is given so many
    nodes; 0: they may be split.
    """

    rounds: int
    keep: int
    repriced: int
    dives: tuple[int, ...] = (0,)
    stays: int = MOST_ENTRIES
    trials: int = 0
    whole_nodes: int = 0


_NEAR = 1.0005
"""A settled mix whose step is at most this much longer than the relaxed one is not worth more effort."""


def mixed(work: Workload, effort: Effort) -> Iterator[tuple[str, Decision]]:
    """Decisions with their labels, one for each of `effort.dives`, and a repaired one; none if the solver fails.

    Their details: `program_ns`, the step that the program predicts; `columns`; `near`, whether it is as short as that
    of the relaxed program.
    """
    settler = make_settler(work, effort)
    relaxed = settler.priced(effort.repriced)
    if relaxed is None:
        return
    enough_ns = relaxed.step_ns * _NEAR if settler.converged else 0.0
    found = []
    for label, settled in _settled(settler, relaxed, effort):
        found.append((label, settled))
        yield label, _real(settler, settled, enough_ns)
        if settled.mix.step_ns <= enough_ns:
            return
    if found and effort.trials:
        label, best = min(found, key=lambda pair: pair[1].mix.step_ns)
        better = settler.repaired(best, effort.trials, enough_ns)
        if better is not best:
            yield f"{label}, repaired", _real(settler, better, enough_ns)


def make_settler(work: Workload, effort: Effort) -> Settler:
    """A Settler whose master has the columns that were cheapest at the last prices of a descent."""
    machine = work.machine
    free = np.full(work.n_layers, float(work.budget_bytes))
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    if machine.flops_per_s is None:
        layer_ns = work.compute_ns + work.traffic_ns
    merged, of = families(work) if not effort.whole_nodes else (work, np.arange(len(work.units)))
    pricer, columns, stays = Pricer(merged), Columns(merged), make_stays(work, merged, of, most_entries=effort.stays)
    descend(merged, pricer, columns, stays, free, layer_ns, work.per_s, effort.rounds, effort.keep)
    return Settler(work, merged, of, Master(merged, columns, stays, work.per_s), pricer, columns)


def _settled(settler: Settler, mix: Mix, effort: Effort) -> Iterator[tuple[str, Settled]]:
    """The relaxed mix settled at once, and after ever more rounds of diving."""
    master, of = settler.master, settler.of
    dive, dived = Dive(master, mix, np.bincount(of, minlength=len(settler.merged.units))), 0
    for dives in effort.dives:
        master.release()
        went = dive.go(dives - dived)
        if dives and not went:
            return  # all is whole already
        dived = dives
        slow, units = _slow_shorts(settler.work, master.stays, dive.mix), _staying_units(settler, dive.mix)
        settled = settler.settle(slow, units, effort.repriced)
        if settled is not None and effort.whole_nodes:
            whole = master.solve_whole(effort.whole_nodes)
            settled = None if whole is None else replace(settled, mix=whole)
        if settled is not None:
            yield f"mixed, {dived} dives" if effort.stays else "mixed by layers", settled


def _real(settler: Settler, settled: Settled, enough_ns: float) -> Decision:
    decision = realise(settler.work, settler.of, settler.columns, settled.mix.share, settled.short)
    step_ns = settled.mix.step_ns
    told = {"program_ns": int(step_ns), "columns": settler.columns.n, "near": bool(step_ns <= enough_ns)}
    return replace(decision, details=told)


def _staying_units(settler: Settler, mix: Mix) -> NDArray[np.int64]:
    """Units that the mix keeps in fast memory all their life: of each family as many as come nearest to its share."""
    stays, of = settler.master.stays, settler.of
    share = np.zeros(int(of.max(initial=-1)) + 1)
    long = stays.family >= 0
    share[stays.family[long]] = mix.stay[long]
    return _nearest(of, settler.work.units.nbytes.astype(np.float64), share)


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
