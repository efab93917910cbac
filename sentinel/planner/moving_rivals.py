"""Rivals that move tensors: by use `lru` (an active list, as IAL), `next-use` (Belady) and `capuchin` (free time), the
saved ones only `tiertrain`, by an integer program `autotm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import ROLES
from sentinel.planner.assemble import assemble, footprint_bytes, one_tier
from sentinel.planner.decision import (
    Choice,
    Decision,
    Episodes,
    bridge_shortest_gaps,
    choose,
    decide,
    episodes_of,
    room_bytes,
)
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful


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
        _, by, has_gap = work.gaps
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
        _, by, has_gap = work.gaps
        after = work.use_layer + 1
        layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
        clock = np.append(0.0, np.cumsum(np.tile(layer_ns, 3)))
        nbytes = work.units.nbytes[work.use_unit]
        out, back = (1e9 / work.machine.link(*way).bandwidth_bytes_per_s for way in ((0, 1), (1, 0)))
        spare = clock[by] - clock[after] - nbytes * (out + back)
        wide = has_gap & (by - after >= 2)
        parted = np.zeros(len(by), bool)
        everything = episodes_of(work, _in_time(work, parted, by, 1))
        over = room_bytes(work, everything) - free
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
        follower, by, has_gap = work.gaps
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


SMALLEST_BYTES = 107_375
"""A saved tensor of less stays: 0.0001 GiB, as in their code."""

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Depths of the queue of what comes back, in layers."""

_ENOUGH = 1e-3
"""The queue stops growing where a deeper one shortens the step by less than this share."""


class TierTrain:
    """Our reading of TierTrain (Swaminathan et al., ISMM 2025), which moves saved tensors and nothing else.

    What forward saves for backward leaves for slow memory as soon as the layer after its last use in forward begins,
    one tensor after the other, and comes back so many layers ahead of its use in backward: the depth of a queue, which
    grows while that shortens the step. Tensors leave whether fast memory is short or not: what it is to lower is the
    fast memory held. Parameters, optimizer state, gradients and small tensors stay where they are born. Under a hard
    limit what finds no room as it is born is born in slow memory.

    Read from the abstract and from the published code (github.com/sathvikintel/TierTrain), which looks one layer ahead,
    leaves out what has at most 0.0001 GiB, and moves by a process of its own. Here exact windows, the laws and the
    movers are those of every other policy.
    """

    name = "tiertrain"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan with the least depth that a deeper queue does not beat. It moves even where everything fits."""
        work = make_workload(profile, machine, footprint_bytes(profile))
        short = reserve(work, work.budget_bytes)
        away = saved_gaps(work)
        best = self._drawn(work, short, away, DEPTHS[0])
        for depth in DEPTHS[1:]:
            deeper = self._drawn(work, short, away, depth)
            if (deeper[1].step_ns or 0) >= (best[1].step_ns or 0) * (1 - _ENOUGH):
                break
            best = deeper
        plan, run = best
        return plan.told(predicted_step_ns=run.step_ns)

    def _drawn(self, work: Workload, short: Reserve, away: NDArray[np.bool_], depth: int) -> tuple[Plan, Run]:
        episodes = make_episodes(work, away, depth)
        order = np.lexsort((episodes.unit, episodes.begin % work.n_layers, ~work.units.persistent[episodes.unit]))
        granted = choose(work, episodes, work.budget_bytes - short.held_bytes, order)
        drawn = assemble(
            decide(work, episodes, granted, short),
            work.units,
            work.profile,
            work.machine,
            policy=self.name,
            footprint_bytes=work.footprint_bytes,
        )
        told = {**drawn.details, "depth": depth, "saved_tensors": int(away.sum())}
        return drawn.told(details=told), simulate_lawful(drawn, work.profile, work.machine)


def saved_gaps(work: Workload) -> NDArray[np.bool_]:
    """Per use, whether behind it comes the time in which a saved tensor waits for backward: of each transient tensor
    that forward makes the longest time between two uses. No tensor of one use, and none that is small, has one."""
    units = work.units
    _, by, has_gap = work.gaps
    starts = _starts_ns(work)
    made_by_forward = np.isin(_role(work), [ROLES.index("activation"), ROLES.index("input")])
    saved = made_by_forward & ~units.persistent & (units.nbytes >= SMALLEST_BYTES)
    wait_ns = np.where(has_gap, starts[by] - starts[work.use_layer + 1], -1.0)
    rows = np.flatnonzero(has_gap & saved[work.use_unit] & (by - work.use_layer >= 3))
    order = rows[np.lexsort((rows, wait_ns[rows], work.use_unit[rows]))]
    longest = order[np.append(np.diff(work.use_unit[order]) != 0, True)] if len(order) else order
    out = np.zeros(len(by), bool)
    out[longest] = True
    return out


def make_episodes(work: Workload, away: NDArray[np.bool_], depth: int) -> Episodes:
    """The stays in fast memory if it serves all uses, and what waits for backward is `away`, back `depth` layers ahead.

    Who leaves first is written first, and is done when the link has had the time; a tensor that could not be gone and
    back in its time stays.
    """
    _, by, has_gap = work.gaps
    after = work.use_layer + 1
    left = _left(work, away)
    arrive = np.maximum(by - depth, left)
    gone = away & has_gap & (arrive < by)
    everywhere = np.ones(len(by), bool)
    return episodes_of(work, Choice(everywhere, gone, after, left, arrive, np.maximum(by, arrive + 1)))


def _left(work: Workload, away: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per use, the unrolled layer before which the demotion behind it is done, of those that are `away`, in turn."""
    after = work.use_layer + 1
    starts = _starts_ns(work)
    out = after + 1
    rows = np.flatnonzero(away)
    ns_a_byte = 1e9 / work.machine.link(0, 1).bandwidth_bytes_per_s
    clock = 0.0
    for row in rows[np.argsort(after[rows], kind="stable")].tolist():
        clock = max(clock, float(starts[after[row]])) + float(work.units.nbytes[work.use_unit[row]]) * ns_a_byte
        out[row] = max(int(np.searchsorted(starts, clock)), int(after[row]) + 1)
    return out


def _starts_ns(work: Workload) -> NDArray[np.float64]:
    """(3 L + 1,) when each unrolled layer begins, with everything in fast memory."""
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    return np.append(0.0, np.cumsum(np.tile(layer_ns, 3)))


def _role(work: Workload) -> NDArray[np.int64]:
    """(units,) role of the first tensor of each."""
    units = work.units
    return work.profile.tensors["role"][units.tensors[units.first[:-1]]].astype(np.int64)


MOST_UNITS = 600


class AutoTm(_ByUse):
    """Each unit follows one timeline, whole: no page ranges. The timelines are those that `sentinel` mixes.

    Its search for the best mix ends after 50 nodes, and the plan is the same everywhere. `search_s`: it goes on for so
    many seconds among more timelines, and the better mix is taken; where time ended it, the plan depends on the host.
    Either way `details["gap"]` says by what share of its time a mix of the same timelines could be shorter at most.
    """

    name = "autotm"

    def __init__(self, search_s: float | None = None) -> None:
        self._search_s = search_s

    def decide(self, work: Workload, _: Reserve) -> Decision:
        """The best whole-tensor plan that a bounded search finds. Raises PlanError above `MOST_UNITS` units,
        and Infeasible where what cannot be used in slow memory does not fit."""
        if len(work.units) > MOST_UNITS:
            raise PlanError(
                f"policy autotm is for at most {MOST_UNITS} blocks, this step has {len(work.units)}; use sentinel"
            )
        from sentinel.planner.column_generation import Effort, optimized  # not above: the other rivals ask no solver
        from sentinel.planner.fetching import just_in_time
        from sentinel.planner.relaxation import MOST_ENTRIES

        least = [just_in_time(work)] if work.keeps_shorts.any() or work.fetched.any() else []
        pinned = 0 if least else MOST_ENTRIES  # one that lies across the pool's cap would be partly away
        efforts = [Effort(60, 6, 2, pinned_entries=pinned, whole_nodes=50)]
        if self._search_s is not None:
            # more timelines than the nodes are enough for: cut short, a search among them may find less than the other
            longer = Effort(60, 6, 20, pinned_entries=pinned, whole_nodes=1 << 30, whole_s=self._search_s)
            efforts.insert(0, longer)
        found = [decision for _, decision in optimized(work, *efforts)]
        if not found and not least:
            raise PlanError("policy autotm: the solver found no plan; use sentinel")
        return min(found, key=lambda each: int(each.details["program_ns"])) if found else least[0]
