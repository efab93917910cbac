"""The core of `sentinel`: a linear program over timelines of units, solved by column generation.

Per use, what fast memory saves is weighed against the room and the link time that it costs there and then. Prices of
room and links by layer start from a subgradient descent. A master program then chooses among the timelines that were
cheapest at some prices, and its duals are the next prices. Beyond the paper; see docs/how-it-works.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.decision import Choice, Decision, Episodes, episodes_of, room_bytes
from sentinel.planner.fetching import fetches
from sentinel.planner.master import Columns, Master, Mix
from sentinel.planner.pool import Reserve, pool_ns, reserve
from sentinel.planner.pricing import Pricer, Prices
from sentinel.planner.relaxation import (
    MOST_ENTRIES,
    PinnedCandidates,
    find_candidates,
    layer_base_ms,
    merge_alike,
    worth_pinning,
)
from sentinel.planner.rounding import Dive, lacking_bytes, pinned_units, round_to_pages, unpinned_shorts
from sentinel.planner.workload import Workload


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    `rounds` of the subgradient descent, of which the last `keep` give columns. At most `repriced` rounds of master and
    pricing. `dives`: a mix is rounded after each of these numbers of LP diving rounds. `pinned_entries`: most (class,
    instant) entries of long-lived units that may be pinned; 0: long-lived units hold room by layers only.
    `whole_nodes`: nodes of the search for a mix that splits no unit; 0: units may be split. `whole_s`: seconds of that
    search, 0: as long as it takes. `promised_by`: round
    the mix only if a round of pricing found nothing more; do not even look for one where this other effort is far
    from that. `nearest`: see `Master`.
    """

    rounds: int
    keep: int
    repriced: int
    dives: tuple[int, ...] = (0,)
    pinned_entries: int = MOST_ENTRIES
    whole_nodes: int = 0
    whole_s: float = 0.0
    promised_by: Effort | None = None
    nearest: int | None = None


_MIDDLING = 150_000
"""Units times layers up to which several roundings are tried."""

_LARGE = 1_000_000
"""Units times layers from which on one rounding is tried, to plan in about a second."""

_MANY = 20_000
"""Tensors from which on they are, however few the layers: packing them takes nearly all the time of a candidate."""

_NEAREST = 500
"""Columns beyond those of the basis that a search keeps where one plan takes seconds: with all of them programs take
longer, and most are never in a mix."""


def efforts_for(work: Workload, *, drops: bool = False) -> tuple[Effort, ...]:
    """How hard to try: a function of the workload's size, not of time, so that plans stay reproducible.

    `drops`: where one plan takes seconds, columns far from the mix go. The step is 0.4 % longer then in the mean, but
    that of a search which continues this one is not.
    """
    if work.fetched.any():  # to pin what could leave is worth next to nothing: 0.5 % of a step at most was seen
        return (Effort(60, 4, 5 if is_large(work) else 20, pinned_entries=0),)
    if is_large(work):
        return (Effort(12, 2, 1, pinned_entries=0),)
    if len(work.units) * work.n_layers > _MIDDLING:
        # with two tiers, a mix that did not converge is hardly ever better than the one by layers, and takes as long
        by_layers = Effort(60, 4, 3, pinned_entries=0, nearest=_NEAREST if drops else None)
        two = len(work.machine.tiers) == 2
        return (Effort(60, 4, 3, dives=(12,), promised_by=by_layers if two else None), by_layers)
    return (Effort(60, 4, 20, dives=(0, 6, 12, 24)), Effort(60, 4, 20, pinned_entries=0))


def efforts_again(work: Workload) -> tuple[Effort, ...]:
    """How hard to try where a step is planned again for other machines: as hard, but for the cheapest effort only where
    one plan takes seconds."""
    efforts = efforts_for(work, drops=True)
    return efforts[-1:] if is_continued(work) else efforts


def is_continued(work: Workload) -> bool:
    """Whether a search for another machine begins where this one ends: where one plan takes seconds."""
    return len(work.units) * work.n_layers > _MIDDLING


def is_large(work: Workload) -> bool:
    """Whether candidates beyond the first one take too long."""
    return len(work.units) * work.n_layers > _LARGE or len(work.profile.names) > _MANY


_HOPELESS = 2e-3
"""Where the last round of an effort still gained more than this share of the step, what counts more exactly does not
converge either."""

_NEAR = 1.0005
"""Stop when a rounded mix takes at most this many times as long as the relaxed one: no search finds much better."""


Ends = dict[int, "ColumnGeneration"]
"""The generations in which efforts ended, by their `pinned_entries`."""


def optimized(work: Workload, *efforts: Effort, ends: Ends | None = None) -> Iterator[tuple[str, Decision]]:
    """Decisions with their labels, of each effort one for each of its `dives`, until one is near the relaxed step.

    Their details: `program_ns`, the step that the program predicts; `columns`; of a mix that splits no unit its `gap`.
    None of an effort whose solver fails.
    `ends`: of a search of the same workload for a machine with other links; those of this search take their place.
    """
    ends = {} if ends is None else ends
    relaxed_by = cache(partial(_relaxed, work, cache(partial(_descended, work)), dict(ends), ends))
    for effort in efforts:
        if effort.promised_by and relaxed_by(effort.promised_by)[0].is_hopeless:
            continue
        generation, relaxed = relaxed_by(effort)
        if relaxed is None or (effort.promised_by and not generation.converged):
            continue
        enough_ns = relaxed.step_ns * _NEAR if generation.converged else 0.0
        for label, rounded in _rounded(generation, relaxed, effort):
            yield label, _decision(generation, rounded)
            if rounded.mix.step_ns <= enough_ns:
                return


def start_column_generation(work: Workload, effort: Effort) -> ColumnGeneration:
    """A relaxation whose master has the columns that were cheapest at the last prices of a descent."""
    return _start(work, effort, _descended(work, effort.rounds, effort.keep, whole=effort.whole_nodes > 0))


def _relaxed(
    work: Workload, descended: Callable[..., _Descent], earlier: Ends, ends: Ends, effort: Effort
) -> tuple[ColumnGeneration, Mix | None]:
    before, rounds = earlier.get(effort.pinned_entries), effort.repriced
    generation = None if before is None else before.continued(work)
    if generation is None:
        generation = _start(work, effort, descended(effort.rounds, effort.keep, whole=effort.whole_nodes > 0))
    else:
        rounds -= 1  # its columns were priced for nearly this
    ends[effort.pinned_entries] = generation
    return generation, generation.solve(rounds)


@dataclass(frozen=True, eq=False)
class _Descent:
    """What efforts have in common that descend alike: the class of each unit, the `Pricer` of the classes, the columns
    that were cheapest at the last prices, and what may be pinned of short-lived tensors. Others have no part in it."""

    of: NDArray[np.int64]
    pricer: Pricer
    columns: Columns
    shorts: PinnedCandidates


def _descended(work: Workload, rounds: int, keep: int, *, whole: bool) -> _Descent:
    merged, of = (work, np.arange(len(work.units))) if whole else merge_alike(work)
    pricer, columns = Pricer(merged), Columns(merged)
    shorts = find_candidates(work, merged, of, most_entries=0)
    if merged.fetched.any():
        for choice in fetches(merged):
            columns.add(choice)
    if not merged.fetched.all():
        descend(merged, pricer, columns, shorts, rounds, keep)
    return _Descent(of, pricer, columns, shorts)


def _start(work: Workload, effort: Effort, descent: _Descent) -> ColumnGeneration:
    merged, of, candidates = descent.pricer.work, descent.of, descent.shorts
    if effort.pinned_entries:
        candidates = find_candidates(work, merged, of, most_entries=effort.pinned_entries)
    master = Master(merged, descent.columns.copy(), candidates, nearest=effort.nearest)
    return ColumnGeneration(work, of, master, descent.pricer)


def _rounded(generation: ColumnGeneration, mix: Mix, effort: Effort) -> Iterator[tuple[str, PoolRounding]]:
    """The relaxed mix rounded after each of `effort.dives` rounds of diving."""
    master, of = generation.master, generation.of
    dive, dived = Dive(master, mix, np.bincount(of, minlength=len(generation.merged.units))), 0
    for dives in effort.dives:
        master.release_pool()
        went = dive.run(dives - dived)
        if dives and not went:
            return  # every share is whole already
        dived = dives
        slow = unpinned_shorts(generation.work, master.candidates, dive.mix)
        units = pinned_units(generation.work, of, master.candidates, dive.mix)
        rounded = _in_whole_pages(generation, slow, units, effort.repriced)
        if rounded is not None and effort.whole_nodes:
            whole = master.solve_whole(effort.whole_nodes, effort.whole_s)
            rounded = None if whole is None else replace(rounded, mix=whole)
        if rounded is not None:
            yield f"optimized, {dived} dives" if effort.pinned_entries else "optimized by layers", rounded


_TRIES = 6
"""Times that a mix is made with more to spare, where whole pages of what has to be in fast memory did not fit."""


def _in_whole_pages(
    generation: ColumnGeneration, slow: NDArray[np.bool_], units: NDArray[np.int64], rounds: int
) -> PoolRounding | None:
    """`round_to_pool`, with so much to spare that what has to be in fast memory also fits in whole pages."""
    work, spare = generation.work, np.zeros(generation.work.n_layers, np.int64)
    for _ in range(_TRIES):
        rounded = generation.round_to_pool(slow, units, rounds, spare)
        if rounded is None or not work.fetched.any():
            return rounded
        lacking = lacking_bytes(work, generation.of, generation.columns, rounded.mix.share, rounded.short)
        if not lacking.any():
            return rounded
        spare += 2 * lacking
    return None


def _decision(generation: ColumnGeneration, rounded: PoolRounding) -> Decision:
    decision = round_to_pages(generation.work, generation.of, generation.columns, rounded.mix.share, rounded.short)
    details = {"program_ns": int(rounded.mix.step_ns), "columns": generation.columns.n}
    gap = {} if rounded.mix.gap is None else {"gap": round(rounded.mix.gap, 6)}
    return replace(decision, details=details | gap)


_ENOUGH = 2e-4
"""Stop when a round of master and pricing shortens the step by less than this share."""


@dataclass(frozen=True, eq=False)
class PoolRounding:
    """`short`: the packed pool, pinned units among it. `mix`: the best mix around that."""

    short: Reserve
    mix: Mix


class ColumnGeneration:
    """The relaxation of one workload. `merged`, `of`: the workload of its classes, and the class of each unit."""

    def __init__(self, work: Workload, of: NDArray[np.int64], master: Master, pricer: Pricer) -> None:
        self.work, self.merged, self.of = work, master.work, of
        self.master, self.pricer = master, pricer
        self.converged, self.open = False, 0.0

    def solve(self, rounds: int) -> Mix | None:
        """The best mix after at most so many rounds of master and pricing; None if the solver fails.

        `converged` says whether it ended because no new column helped, `open` what share of a step the last ones saved.
        """
        mix, self.converged, self.open = self.master.solve(), True, 0.0
        for _ in range(rounds):
            if mix is None or not self.columns.add(self.pricer.best(mix.prices)[0]):
                break
            mix = self.master.drop_far(mix)
            better = self.master.solve()
            if better is None:
                break
            self.open, mix = (mix.step_ns - better.step_ns) / max(better.step_ns, 1e-9), better
            if self.open < _ENOUGH:
                break
        else:
            self.converged = False
        return mix

    def continued(self, work: Workload) -> ColumnGeneration | None:
        """A relaxation of the same workload for a machine with other links, which begins with the basis of this one;
        None where its last program was not solved."""
        merged = replace(self.merged, machine=work.machine)
        master = self.master.continued(merged, _NEAREST)
        return None if master is None else ColumnGeneration(work, self.of, master, Pricer(merged))

    @property
    def columns(self) -> Columns:
        """Those of the master by now."""
        return self.master.columns

    @property
    def is_hopeless(self) -> bool:
        """Whether what was solved last is far from converged."""
        return not self.converged and self.open > _HOPELESS

    def round_to_pool(
        self, slow: NDArray[np.bool_], units: NDArray[np.int64], rounds: int, spare: NDArray[np.int64] | int = 0
    ) -> PoolRounding | None:
        """Pack the short-lived tensors that are not `slow` and these units; the pool stays fixed in the master
        until `release_pool`. `spare`: (L,) bytes of each layer that are left free."""
        work, merged = self.work, self.merged
        short = reserve(work, work.budget_bytes, slow, units)
        left = (work.budget_bytes - short.held_bytes - spare).astype(np.float64)
        inside = np.bincount(self.of[short.pooled], work.units.nbytes[short.pooled], len(merged.units))
        fixed = replace(merged, pool_ns=pool_ns(work, short))
        self.master.fix_pool(fixed, left, 1.0 - inside / np.maximum(merged.units.nbytes, 1))
        mix = self.solve(rounds)
        return None if mix is None else PoolRounding(short, mix)


def descend(
    work: Workload,
    pricer: Pricer,
    columns: Columns,
    candidates: PinnedCandidates,
    rounds: int,
    keep: int,
) -> Prices:
    """Prices near those at which demand meets supply; the choices of the last `keep` rounds are added to `columns`."""
    length, k = work.n_layers, candidates.exists.shape[1]
    free = np.full(length, float(work.budget_bytes))
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    at_stake = float(work.use_ns.sum()) + float(
        candidates.use_ns[candidates.unit_class[candidates.use_group] < 0].sum()
    )
    room_unit = at_stake / max(float(free.sum()), 1.0)
    supply = [np.maximum(layer_ns * rate / 1e9, 1.0) for rate in work.per_s]
    move_unit = [at_stake / max(float(s.sum()), 1.0) for s in supply]
    instants = np.zeros((length, k))
    instants[:, 0] = room_unit / 2
    promote, demote = np.full(length, move_unit[0] / 4), np.full(length, move_unit[1] / 4)
    slow = np.ones(length)
    lost = np.ones(length)
    prices = Prices(instants.sum(axis=1), promote, demote, slow, instants, lost)
    average = base = layer_base_ms(work, candidates)[0] * 1e6
    for number in range(rounds):
        choice, _ = pricer.best(prices)
        chosen = worth_pinning(candidates, prices.instants, prices.slow)
        if number >= rounds - keep:
            columns.add(choice)
        step = 1.0 / (2.0 + 0.25 * number)
        episodes = episodes_of(work, choice)
        held = room_bytes(work, episodes)[:, None] + _alive(candidates, chosen)
        short = np.where(candidates.exists, held / np.maximum(free, 1.0)[:, None] - 1.0, -1.0)
        instants = np.maximum(prices.instants + step * room_unit * np.clip(short, -1.0, 2.0), 0.0)
        promote, demote = (
            np.maximum(before + step * unit * np.clip(moved / able - 1.0, -1.0, 2.0), 0.0)
            for before, unit, moved, able in zip(
                (prices.promote, prices.demote), move_unit, _moved(work, episodes), supply, strict=True
            )
        )
        if work.machine.flops_per_s is not None:
            average = average + (_layer_ns(work, choice, candidates, chosen, base) - average) * max(step, 0.1)
            slow = np.clip(0.5 + 4.0 * (average - work.compute_ns) / np.maximum(layer_ns, 1.0), 0.0, 1.0)
        prices = Prices(instants.sum(axis=1), promote, demote, slow, instants, lost)
    return prices


def _alive(candidates: PinnedCandidates, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, k) bytes of the chosen groups alive at each instant."""
    out = np.zeros(candidates.exists.shape)
    out[candidates.exists] = np.bincount(
        candidates.row, candidates.row_bytes * chosen[candidates.row_group], int(candidates.exists.sum())
    )
    return out


def _moved(work: Workload, episodes: Episodes) -> list[NDArray[np.float64]]:
    """(L,) bytes promoted and demoted, those of slower links for as many as `per_s` moves meanwhile."""
    nbytes = work.units.nbytes[episodes.unit] * work.move_slowdown[:, episodes.unit]
    ways = ((episodes.promote, episodes.held_from), (episodes.demote, episodes.end))
    length = work.n_layers
    return [
        np.bincount(start[w] % length, slowed[w], length).astype(np.float64)
        for slowed, (w, start) in zip(nbytes, ways, strict=True)
    ]


def _layer_ns(
    work: Workload, choice: Choice, candidates: PinnedCandidates, chosen: NDArray[np.bool_], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(L,) ns that each layer's traffic takes."""
    saved = np.bincount(work.layer_of_use, work.use_ns * choice.fast, work.n_layers)
    return (
        base
        - saved
        - np.bincount(candidates.use_layer, candidates.use_ns * chosen[candidates.use_group], work.n_layers)
    )
