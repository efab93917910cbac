"""Rivals that move whole units by use: `lru` (an active list, as IAL), `next-use` (Belady), `capuchin` (free time)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import Decision, choose, decide
from sentinel.planner.episodes import Choice, Episodes, bridge_shortest_gaps, episodes_of, gaps
from sentinel.planner.fixed_placement import one_tier
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload


class _ByUse(ABC):
    """Plans a decision over whole units; all in fast memory where that fits."""

    name = ""

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan of this rule."""
        all_fast = one_tier(profile, machine, 0, self.name)
        if all_fast.footprint_bytes <= machine.fast.capacity_bytes:
            return all_fast
        work = make_workload(profile, machine, all_fast.footprint_bytes)
        short = reserve(work, work.budget_bytes)
        decision = self.decide(work, short)
        return assemble(
            decision, work.units, profile, machine, policy=self.name, footprint_bytes=all_fast.footprint_bytes
        )

    @abstractmethod
    def decide(self, work: Workload, short: Reserve) -> Decision:
        """The rule."""


class NextUse(_ByUse):
    """Belady's rule with perfect knowledge: what is used again soonest stays; everything else is fetched for its use.

    No cost is weighed: a unit is brought in for each of its uses, however little that saves.
    """

    name = "next-use"

    def decide(self, work: Workload, short: Reserve) -> Decision:
        """Gaps are bridged from the shortest on while there is room; then episodes are granted as they begin."""
        free = work.budget_bytes - short.held_bytes
        _, by, has_gap = gaps(work)
        after = work.use_layer + 1
        wide = has_gap & (by - after >= 2)
        parted = bridge_shortest_gaps(work, wide, free - _used_bytes(work), after, by)
        episodes = episodes_of(work, _in_time(work, parted, by, 1))
        order = np.lexsort((episodes.unit, episodes.begin % work.n_layers))
        return decide(work, episodes, choose(work, episodes, free.copy(), order), short)


class Capuchin(_ByUse):
    """Of what is too much, that goes first whose gap leaves most time free beyond moving it out and in."""

    name = "capuchin"

    def decide(self, work: Workload, short: Reserve) -> Decision:
        """From all resident, gaps are opened by free time until every layer fits; what still does not stays slow."""
        free = work.budget_bytes - short.held_bytes
        _, by, has_gap = gaps(work)
        after = work.use_layer + 1
        layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
        clock = np.append(0.0, np.cumsum(np.tile(layer_ns, 3)))
        nbytes = work.units.nbytes[work.use_unit].astype(np.float64)
        out, back = (1e9 / work.machine.link(*way).bandwidth_bytes_per_s for way in ((0, 1), (1, 0)))
        spare = clock[by] - clock[after] - nbytes * (out + back)
        wide = has_gap & (by - after >= 2)
        parted = np.zeros(len(by), bool)
        everything = episodes_of(work, _in_time(work, parted, by, 1))
        held = np.zeros(work.n_layers)
        for unit, low, high in zip(everything.unit, everything.held_from, everything.held_until, strict=True):
            held[np.arange(low, high) % work.n_layers] += work.units.nbytes[unit]
        over = held - free
        for row in np.flatnonzero(wide)[np.argsort(-spare[wide], kind="stable")].tolist():
            layers = np.arange(after[row] + 1, by[row] - 1) % work.n_layers
            if len(layers) and over[layers].max() > 0:
                parted[row] = True
                over[layers] -= nbytes[row]
        # moved back in 5 % before its time, as their feedback does
        lead = np.maximum(np.ceil(nbytes * back * 1.05 / max(float(np.median(layer_ns)), 1.0)), 1).astype(np.int64)
        episodes = episodes_of(work, _in_time(work, parted, by, lead))
        density = episodes.value_ns / work.units.nbytes[episodes.unit]
        order = np.lexsort((episodes.unit, -density))
        return decide(work, episodes, choose(work, episodes, free.copy(), order), short)


class Lru(_ByUse):
    """An active list of units: what is used is brought in behind the use, what was not used longest goes out.

    A unit is still there at its next use if less than fast memory was used in between (its stack distance).
    Promotions that the link has no time for do not happen, as in a kernel thread that lags behind.
    """

    name = "lru"

    def decide(self, work: Workload, short: Reserve) -> Decision:
        """Steady state of the list over the ring."""
        free = work.budget_bytes - short.held_bytes
        follower, by, has_gap = gaps(work)
        touched = np.append(0.0, np.cumsum(np.tile(_used_bytes(work).astype(np.float64), 3)))
        room = float(free.min())
        nbytes = work.units.nbytes[work.use_unit].astype(np.float64)
        hit = has_gap & (touched[by] - touched[work.use_layer + 1] + nbytes <= room)
        evicted = np.searchsorted(touched, touched[work.use_layer + 1] + room - nbytes, side="left")
        episodes = _behind_uses(work, hit, np.maximum(evicted, work.use_layer + 3), follower, by, has_gap)
        granted = choose(work, episodes, free.copy(), np.lexsort((episodes.unit, episodes.begin % work.n_layers)))
        return decide(work, episodes, granted & _within_link(work, episodes, granted), short)


def _behind_uses(
    work: Workload,
    hit: NDArray[np.bool_],
    evicted: NDArray[np.int64],
    follower: NDArray[np.int64],
    by: NDArray[np.int64],
    has_gap: NDArray[np.bool_],
) -> Episodes:
    """One episode a stretch of hits: from behind the use that missed to the eviction."""
    rows: list[tuple[int, int, int, int, int, bool, bool, float]] = []
    length, units = work.n_layers, work.units
    for unit in range(len(units)):
        first, last = int(work.first_use[unit]), int(work.first_use[unit + 1]) - 1
        if first > last:
            continue
        if units.persistent[unit] and hit[first : last + 1].all():
            rows.append((unit, 0, 0, length, length, False, False, float(work.use_ns[first : last + 1].sum())))
            continue
        for head in range(first, last + 1):
            born = head == first and not units.persistent[unit]
            before = last if head == first else head - 1
            if not born and hit[before]:
                continue  # a hit: its episode began earlier
            tail, turn, value = head, 0, float(work.use_ns[head]) if born else 0.0
            while hit[tail]:
                turn += length if follower[tail] <= tail else 0
                tail = int(follower[tail])
                value += float(work.use_ns[tail])
            begin = int(work.use_layer[head]) + (0 if born else 2)
            end = int(evicted[tail]) + turn
            bound = int(by[tail]) + turn if has_gap[tail] else int(units.stop[unit])
            dies = not has_gap[tail] and end + 1 >= bound
            if dies:
                end = until = bound
            else:
                end = min(end, bound - 1)
                until = end + 1
            start = begin if born else begin - 1
            if (begin < end or born) and end >= begin and until - start < length:
                rows.append((unit, start, begin, end, until, not born, not dies, value))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    kinds = (np.int64, np.int64, np.int64, np.int64, np.int64, np.bool_, np.bool_, np.float64)
    return Episodes(*(np.array(c, k) for c, k in zip(columns, kinds, strict=True)))


def _within_link(work: Workload, episodes: Episodes, granted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Episodes whose moves the links have time for in their layers, as they come."""
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    able = [layer_ns * work.machine.link(*way).bandwidth_bytes_per_s / 1e9 for way in ((1, 0), (0, 1))]
    kept = granted.copy()
    for e in np.flatnonzero(granted)[np.argsort(episodes.held_from[granted], kind="stable")].tolist():
        nbytes = int(work.units.nbytes[episodes.unit[e]])
        up, down = int(episodes.held_from[e]) % work.n_layers, int(episodes.end[e]) % work.n_layers
        moves = [(0, up)] * bool(episodes.promote[e]) + [(1, down)] * bool(episodes.demote[e])
        if episodes.promote[e] and any(able[way][k] < nbytes for way, k in moves):
            kept[e] = False
            continue
        for way, k in moves:
            able[way][k] -= nbytes
    return kept


def _in_time(work: Workload, parted: NDArray[np.bool_], by: NDArray[np.int64], lead: NDArray[np.int64] | int) -> Choice:
    """Every use fast; in parted gaps out right behind the use and back in `lead` layers before the next."""
    after = work.use_layer + 1
    arrive = np.maximum(by - lead, after + 1)
    return Choice(np.ones(len(by), bool), parted, after, after + 1, arrive, by)


def _used_bytes(work: Workload) -> NDArray[np.int64]:
    """(L,) bytes of the units that each layer uses."""
    nbytes = work.units.nbytes[work.use_unit].astype(np.float64)
    return np.bincount(work.use_layer % work.n_layers, nbytes, work.n_layers).astype(np.int64)
