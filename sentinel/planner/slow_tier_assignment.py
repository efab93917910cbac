"""Which slower tier everything is in while it is not in the fast one, where there are several.

A decision says fast (0) or slow (1). Here each part, each short-lived tensor and what lies above the pool's cap gets
one slower tier for all of its slow time, so that links to the fast tier are the only ones used. From the fastest on, a
tier takes what gains most by it for what the room that it holds is worth to others (`room_cost_ns`), as long as there
is room in all its layers; the last one takes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import ring_sum
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.decision import Decision, SlowTime, slow_time, take_room, used_ns
from sentinel.planner.pool import held_bytes, make_pool
from sentinel.planner.workload import SlowTierOf, Units, Workload, peak_bytes, short_peaks

_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class Costs:
    """What each slower tier costs. `use_ns[t]`, `short_ns[t]`: as in the Workload whose slow tier is `tiers[t]`.

    `move_ns`: (slower tiers,) ns that a byte takes there and back, weighed by how much of that shows in the step.
    """

    work: Workload
    use_ns: tuple[NDArray[np.float64], ...]
    short_ns: tuple[NDArray[np.float64], ...]
    move_ns: NDArray[np.float64]


class SlowTierAssigner:
    """Assigns `tiers` (slower ones, fastest first) to what a decision about one step leaves in slow memory.

    `costs`: one entry each for `tiers`; without them tiers are filled in order: persistent parts, transients as born,
    the short-lived ones.
    """

    def __init__(
        self, units: Units, profile: Profile, machine: Machine, tiers: Sequence[int], costs: Costs | None = None
    ) -> None:
        self.units, self.profile, self.machine = units, profile, machine
        self.tiers, self.costs = list(tiers), costs

    def assign(self, decision: Decision, planned: NDArray[np.int64] | None = None) -> tuple[Decision, SlowTierOf]:
        """`decision` with its slower tiers, and the slower tier of everything, what is always fast included.

        `planned`: (units,) slower tiers that the decision was made for; a tier asks the units planned for it first.
        The last tier takes what no other has room for; whether it has is for the laws to say.
        """
        time = slow_time(decision, self.units, self.profile)
        last = self.tiers[-1]
        part_tier = np.full(len(decision.parts), last, np.int64)
        of_short = np.full(len(self.units.short), last, np.int64)
        rest = [last]
        for index, tier in enumerate(self.tiers[:-1]):
            asked = np.zeros(len(decision.parts), bool)
            if planned is not None:
                asked = planned[decision.parts["unit"]] == tier
            self._fill(index, tier, decision, time, asked, part_tier, of_short, rest)
        last_of_all = len(self.machine.tiers) - 1
        chosen = with_slow_tiers(decision, part_tier, of_short, rest[0], last_of_all)
        return chosen, self._slow_tiers(decision, part_tier, of_short)

    def _fill(
        self,
        index: int,
        tier: int,
        decision: Decision,
        time: SlowTime,
        asked: NDArray[np.bool_],
        part_tier: NDArray[np.int64],
        of_short: NDArray[np.int64],
        rest: list[int],
    ) -> None:
        """Give `tier` what it has room for of all that is in the last tier so far."""
        last, length = self.tiers[-1], self.profile.n_layers
        cap = self.machine.tiers[tier].capacity_bytes // PAGE_BYTES * PAGE_BYTES
        left = np.full(length, cap, np.int64)
        if not cap:
            return
        open_short = (of_short == last) & (decision.short_tier > 0)
        groups = self._short_groups(index, open_short)
        parts = np.flatnonzero(part_tier == last)
        above = self._above_cap(index, decision) if rest[0] == last else (0, 0.0)
        for kind, item in self._order(index, decision, time, asked, parts, groups, above):
            if kind == "part":
                spans = time.spans_of(item)
                nbytes = int(decision.parts["pages"][item]) * PAGE_BYTES
                if take_room(left, spans, nbytes):
                    part_tier[item] = tier
            elif kind == "short":
                self._take_shorts(left, item, groups[item], tier, of_short)
            elif take_room(left, [(0, length)], above[0]):
                rest[0] = tier
        self._pack_shorts(left, decision, tier, of_short)

    def _order(
        self,
        index: int,
        decision: Decision,
        time: SlowTime,
        asked: NDArray[np.bool_],
        parts: NDArray[np.int64],
        groups: dict[int, tuple[NDArray[np.int64], float, int]],
        above: tuple[int, float],
    ) -> list[tuple[str, int]]:
        """What may go to a tier, in the order in which it is asked."""
        items = [("part", int(p)) for p in parts] + [("short", k) for k in groups] + [("rest", 0)] * (above[0] > 0)
        never = np.array([kind == "part" and not time.slow[i] for kind, i in items], bool)
        if self.costs is None:
            return [items[i] for i in np.argsort(never, kind="stable").tolist()]
        part_gain = self._part_gain(index, decision, time)[parts]
        tail = [above[1]] * (above[0] > 0)
        gain = np.concatenate([part_gain, [gain for _, gain, _ in groups.values()], tail])
        wanted_ns = np.where(never, 0.0, np.maximum(gain, 0.0))
        paid = self._room_cost_ns(index, decision, time, parts, groups, above[0], wanted_ns)
        later = np.append(asked.any() & ~asked[parts], np.zeros(len(items) - len(parts), bool))
        worth = gain / np.maximum(paid, 1e-3)
        order = np.lexsort((np.arange(len(items)), -worth, later, never))
        if self.machine.tiers[self.tiers[-1]].capacity_bytes >= self.costs.work.footprint_bytes:
            order = order[gain[order] >= 0]  # what it would slow down need not go there
        return [items[i] for i in order.tolist()]

    def _room_cost_ns(
        self,
        index: int,
        decision: Decision,
        time: SlowTime,
        parts: NDArray[np.int64],
        groups: dict[int, tuple[NDArray[np.int64], float, int]],
        above_bytes: int,
        gain: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """(items,) what the room of each item of `_order` costs."""
        length = self.profile.n_layers
        place = np.full(len(decision.parts), -1, np.int64)
        place[parts] = np.arange(len(parts))
        rows = np.flatnonzero(place[time.part] >= 0)
        item = place[time.part[rows]]
        nbytes = decision.parts["pages"][time.part[rows]] * PAGE_BYTES
        layer, peak = np.array(list(groups), np.int64), np.array([peak for *_, peak in groups.values()], np.int64)
        tail = np.zeros(int(above_bytes > 0), np.int64)
        return room_cost_ns(
            np.append(item, np.arange(len(parts), len(gain))),
            np.concatenate([time.start[rows], layer, tail]),
            np.concatenate([time.stop[rows], layer + 1, tail + length]),
            np.concatenate([nbytes, peak, tail + above_bytes]),
            gain,
            self.machine.tiers[self.tiers[index]].capacity_bytes,
            length,
        )

    def _part_gain(self, index: int, decision: Decision, time: SlowTime) -> NDArray[np.float64]:
        """(parts,) ns that the tier saves each part against the next slower one."""
        assert self.costs is not None
        costs, parts = self.costs, decision.parts
        saved = costs.use_ns[index + 1] - costs.use_ns[index]
        moved = np.bincount(decision.moves["part"], minlength=len(parts)) / 2.0 * parts["pages"] * PAGE_BYTES
        links = moved * (costs.move_ns[index + 1] - costs.move_ns[index])
        return np.asarray(used_ns(costs.work, decision, time, saved) + links, np.float64)

    def _short_groups(self, index: int, open_: NDArray[np.bool_]) -> dict[int, tuple[NDArray[np.int64], float, int]]:
        """By layer: short-lived tensors, the worthiest a byte first; what the tier saves them; their peak."""
        short = self.units.short
        t = self.profile.tensors[short]
        gain = np.zeros(len(short))
        if self.costs is not None:
            gain = self.costs.short_ns[index + 1] - self.costs.short_ns[index]
        rows = np.flatnonzero(open_)
        rows = rows[np.lexsort((rows, -gain[rows] / t["nbytes"][rows], t["start"][rows]))]
        peaks = short_peaks(self.profile, short[rows])
        layers, first = np.unique(t["start"][rows], return_index=True)
        return {
            int(k): (mine, float(gain[mine].sum()), max(int(peaks[k]), 1))
            for k, mine in zip(layers.tolist(), np.split(rows, first[1:]), strict=False)
        }

    def _take_shorts(
        self,
        left: NDArray[np.int64],
        layer: int,
        group: tuple[NDArray[np.int64], float, int],
        tier: int,
        chosen: NDArray[np.int64],
    ) -> None:
        """As many of a layer's short-lived tensors as fit at one time, by bisection: their peak grows with each."""
        rows, _, peak = group
        low, high = (len(rows), len(rows)) if peak <= left[layer] else (0, len(rows) - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if peak_bytes(self.profile, self.units.short[rows[:middle]]) <= left[layer]:
                low = middle
            else:
                high = middle - 1
        chosen[rows[:low]] = tier
        left[layer] -= peak_bytes(self.profile, self.units.short[rows[:low]])

    def _pack_shorts(self, left: NDArray[np.int64], decision: Decision, tier: int, chosen: NDArray[np.int64]) -> None:
        """Packed, short-lived tensors may hold more than their peak: those of layers that are too full leave."""
        short, last = self.units.short, self.tiers[-1]
        start = self.profile.tensors["start"][short]
        for attempt in range(_ROUNDS):
            rows = np.flatnonzero((chosen == tier) & (decision.short_tier > 0))
            if not len(rows):
                return
            packed = held_bytes(make_pool(self.profile, short[rows]), self.profile)
            over = packed - short_peaks(self.profile, short[rows]) > left
            if not over.any():
                return
            out = rows[over[start[rows]]]
            chosen[out if attempt < _ROUNDS - 1 and len(out) else rows] = last
        chosen[(chosen == tier) & (decision.short_tier > 0)] = last

    def _above_cap(self, index: int, decision: Decision) -> tuple[int, float]:
        """(bytes, ns saved) of what lies above the cap of the fast pool."""
        pool = decision.fast_pool
        if pool is None or pool.extent <= pool.cap:
            return 0, 0.0
        if self.costs is None:
            return pool.extent - pool.cap, 0.0
        costs, n = self.costs, len(self.profile.names)
        by_tensor = np.zeros(n)
        by_tensor[self.units.short] = costs.short_ns[index + 1] - costs.short_ns[index]
        # units that lie there are small parts of units: only the short-lived ones count
        return pool.extent - pool.cap, float((by_tensor[pool.tensors] * pool.slow_share(self.profile)).sum())

    def _slow_tiers(self, decision: Decision, part_tier: NDArray[np.int64], of_short: NDArray[np.int64]) -> SlowTierOf:
        """Of each unit the slower tier of most of its bytes."""
        most = np.zeros((len(self.machine.tiers), len(self.units)), np.int64)
        np.add.at(most, (part_tier, decision.parts["unit"]), decision.parts["pages"])
        return SlowTierOf(np.asarray(most[1:].argmax(axis=0) + 1, np.int64), of_short)


def with_slow_tiers(
    decision: Decision, part_tier: NDArray[np.int64], of_short: NDArray[np.int64], rest: int, last: int
) -> Decision:
    """The decision with the slower tier of each part, of each short-lived tensor, and of what is above the pool's cap.
    Units are pooled in the `last` tier only: elsewhere layers count."""
    parts, moves = decision.parts.copy(), decision.moves.copy()
    slow = parts["tier"] > 0
    parts["tier"][slow] = part_tier[slow]
    parts["pooled"] &= ~slow | (part_tier == last)
    for end in ("source", "target"):
        away = moves[end] > 0
        moves[end][away] = part_tier[moves["part"][away]]
    short_tier = np.where(decision.short_tier > 0, of_short, 0)
    return replace(decision, parts=parts, moves=moves, short_tier=short_tier, rest_tier=rest, slow_tiers_chosen=True)


_PRICE_ROUNDS = 60


def room_cost_ns(
    item: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    gain_ns: NDArray[np.float64],
    capacity_bytes: int,
    length: int,
) -> NDArray[np.float64]:
    """(items,) what the room of each costs at prices at which about as much is asked for as there is.

    Item `item[i]` wants `nbytes[i]` in the layers [start[i], stop[i]) of the ring; who gains more than it costs, asks.
    What is asked for too much gets dearer, what is idle cheaper; the prices are means of the later rounds.
    """
    begin = start % length
    end = begin + np.minimum(stop - start, length)
    unit = gain_ns.sum() / max(capacity_bytes * length, 1)
    price, mean = np.full(length, unit / 2), np.zeros(length)
    for number in range(_PRICE_ROUNDS):
        asking = gain_ns > _cost(item, begin, end, nbytes, price, len(gain_ns))
        held = ring_sum(np.zeros_like(item), begin, end, nbytes * asking[item], 1, length)[0]
        over = np.clip(held / max(capacity_bytes, 1) - 1.0, -1.0, 2.0)
        price = np.maximum(price + unit * over / (2.0 + 0.25 * number), 0.0)
        mean += price * (number >= _PRICE_ROUNDS // 2)
    return _cost(item, begin, end, nbytes, mean / (_PRICE_ROUNDS - _PRICE_ROUNDS // 2), len(gain_ns))


def _cost(
    item: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    price: NDArray[np.float64],
    n_items: int,
) -> NDArray[np.float64]:
    total = np.append(0.0, np.cumsum(np.tile(price, 2)))
    return np.bincount(item, nbytes * (total[end] - total[begin]), n_items).astype(np.float64)
