"""The pricing problem: the cheapest timeline of every unit at given prices, a shortest path over its uses.

At each use a unit is fast or slow. Between two fast uses it stays, or leaves and comes back; between unlike ones it
moves once. A unit is born in either tier at no cost, so born-in-slow and serve-from-slow come out by themselves. What
cannot be used in slow memory is fast at each use.
A demotion starts in the layer after a use at the earliest: one in the layer that uses it would make that use slow.
A move takes one layer. What is too large for that moves in several layers, a part in each: the master mixes timelines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.decision import Choice
from sentinel.planner.relaxation import alike
from sentinel.planner.workload import Workload


@dataclass(frozen=True, eq=False)
class Prices:
    """(L,) each. `room`: ns a byte held in the layer. `promote`, `demote`: ns a byte moved in it.

    `slow`: what one ns of slow accesses in the layer lengthens the step by, in [0, 1]; `lost`: what one ns that moves
    take from compute does, less what their links gain by it. `instants`: (L, k) ns a byte alive at each instant at
    which the room of a layer is counted; their sum is `room`.
    """

    room: NDArray[np.float64]
    promote: NDArray[np.float64]
    demote: NDArray[np.float64]
    slow: NDArray[np.float64]
    instants: NDArray[np.float64]
    lost: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Window:
    """Per gap: the unrolled layer of the move and the price of a byte, room held meanwhile included; inf if none."""

    layer: NDArray[np.int64]
    price: NDArray[np.float64]


class Priced:
    """Cheapest moves at given prices. Two turns of the ring are unrolled. `exchanges`: see `Workload`."""

    def __init__(self, prices: Prices, *, exchanges: bool = False) -> None:
        self.room = _room_before(prices)
        held = self.room[1:] if exchanges else self.room[:-1]
        self._arrive = RangeMinimum(np.tile(prices.promote, 2) - held)
        self._leave = RangeMinimum(np.tile(prices.demote, 2) + self.room[1:])

    def arrive(self, layers: Ranges, by: NDArray[np.int64]) -> Window:
        """Cheapest promotion in one of these `layers`, the room held from then until layer `by` included."""
        best = self._arrive.argmin(layers)
        return Window(best, np.where(layers.some, self._arrive.values.take(best) + self.room.take(by), np.inf))

    def leave(self, layers: Ranges, after: NDArray[np.int64]) -> Window:
        """Cheapest demotion in one of these `layers`, the room held from `after` until its end included."""
        best = self._leave.argmin(layers)
        return Window(best, np.where(layers.some, self._leave.values.take(best) - self.room.take(after), np.inf))


def _room_before(prices: Prices) -> NDArray[np.float64]:
    """(2 L + 1,) what a byte held in all unrolled layers before each one costs."""
    return np.append(0.0, np.cumsum(np.tile(prices.room, 2)))


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges [low, high) of `n` values as a `RangeMinimum` looks them up: two that overlap cover each. `some`: those
    that are not empty; `one`, `other`: where the minima of the two are in the table."""

    some: NDArray[np.bool_]
    one: NDArray[np.int64]
    other: NDArray[np.int64]

    @classmethod
    def of(cls, low: NDArray[np.int64], high: NDArray[np.int64], n: int) -> Ranges:
        """Of (ranges,) `low` and `high` each."""
        width = high - low
        some = width > 0
        safe = np.where(some, width, 1)
        level = np.frexp(safe.astype(np.float64))[1].astype(np.int64) - 1
        one = level * n + np.where(some, low, 0)
        return cls(some, one, one + safe - (1 << level))


class RangeMinimum:
    """Sparse table: n log n to build, constant time a query."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        n = len(values)
        self._table = np.zeros((max(n.bit_length(), 1), n), np.int64)
        best, least, width = np.arange(n), values, 1
        for row in self._table:
            row[: len(best)] = best
            left, right = least[:-width], least[width:]
            best = np.where(left <= right, best[:-width], best[width:])
            least = np.minimum(left, right)
            width *= 2

    def argmin(self, ranges: Ranges) -> NDArray[np.int64]:
        """Per range the first index of the least value; -1 for an empty range."""
        left, right = self._table.take(ranges.one), self._table.take(ranges.other)
        least = np.where(self.values.take(left) <= self.values.take(right), left, right)
        return np.where(ranges.some, least, -1)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Uses in consecutive layers are one: `head` row, `unit`, layers [first, last], `next` run round the ring.

    `dying`: those behind which their unit is freed.
    """

    of: NDArray[np.int64]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    unit: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    next_run: NDArray[np.int64]
    next_layer: NDArray[np.int64]
    has_gap: NDArray[np.bool_]
    born: NDArray[np.bool_]
    dying: NDArray[np.int64]
    by_ordinal: list[NDArray[np.int64]]
    rings_by_ordinal: list[NDArray[np.int64]]
    end_run: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Windows:
    """Of the gaps behind some runs, the `rows`: the layers [after, by) between two uses, and those in which the unit
    may `leave` for good, `arrive`, and come `back`; it leaves in layer `low` at the earliest."""

    rows: NDArray[np.int64] | slice
    after: NDArray[np.int64]
    by: NDArray[np.int64]
    low: NDArray[np.int64]
    leave: Ranges
    arrive: Ranges
    back: Ranges


class Pricer:
    """Answers `best(prices)` for one workload."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.runs = _make_runs(work)
        self.nbytes = work.units.nbytes.astype(np.float64)
        touched = np.bincount(self.runs.of, work.touched, len(self.runs.head)) > 0
        self._never_slow = np.flatnonzero(touched & work.fetched[self.runs.unit])
        self._run_nbytes, self._deaths = self.nbytes[self.runs.unit], work.units.stop[self.runs.unit[self.runs.dying]]
        links = np.concatenate([work.move_slowdown, work.lost_ns_per_byte])[:, self.runs.unit]
        first, of = alike(*links)
        one = len(first) == 1  # as ever with one slower tier: nothing to part and to join
        self._links = [
            (links[:, row], self._windows(slice(None) if one else np.flatnonzero(of == i)))
            for i, row in enumerate(first.tolist())
        ]
        self._of_moves = work.lost_ns_of_moves[:, self.runs.unit] / self._run_nbytes

    def best(self, prices: Prices) -> tuple[Choice, NDArray[np.float64]]:
        """The cheapest timeline of each unit, and (units,) what it saves against slow memory throughout, in ns."""
        work, runs = self.work, self.runs
        room = _room_before(prices)
        nbytes = self._run_nbytes
        here = np.zeros((2, len(runs.head)))  # cost of a run: fast, slow
        here[0] = nbytes * (room[runs.last + 1] - room[runs.first])
        weighed = work.use_ns * prices.slow[work.layer_of_use]
        here[1] = np.bincount(runs.of, weighed, len(runs.head))
        here[1, self._never_slow] = np.inf
        all_slow = np.bincount(runs.unit, here[1], len(self.nbytes))
        stay, leave, arrive, out, back = self._gaps(prices)
        gap = np.zeros((2, 2, len(runs.head)))  # [from, to]
        parted = out.price + back.price < stay
        gap[0, 0] = np.where(runs.has_gap, nbytes * np.minimum(stay, out.price + back.price), 0.0)
        gap[0, 1] = np.where(runs.has_gap, _times(nbytes, leave.price), 0.0)
        gap[1, 0] = np.where(runs.has_gap, _times(nbytes, arrive.price), 0.0)
        dying = runs.dying  # held until it is freed
        here[0, dying] += nbytes[dying] * (room[self._deaths] - room[runs.last[dying] + 1])
        fast, cost = self._shortest(here, gap)
        return self._choice(fast, parted, leave, arrive, out, back), all_slow - cost

    def _gaps(self, prices: Prices) -> tuple[NDArray[np.float64], Window, Window, Window, Window]:
        """Price a byte of staying, and the windows: leave only, arrive only, leave and come back."""
        if len(self._links) == 1:
            link, windows_of = self._links[0]
            return self._gaps_over(self._priced(prices, link), windows_of)
        n = len(self.runs.head)
        stay = np.zeros(n)
        windows = tuple(Window(np.zeros(n, np.int64), np.zeros(n)) for _ in range(4))
        for link, windows_of in self._links:
            rows = windows_of.rows
            stay[rows], *found = self._gaps_over(self._priced(prices, link), windows_of)
            for window, part in zip(windows, found, strict=True):
                window.layer[rows], window.price[rows] = part.layer, part.price
        leave, arrive, out, back = windows
        return stay, leave, arrive, out, back

    def _priced(self, prices: Prices, link: NDArray[np.float64]) -> Priced:
        """`link`: how slow it is both ways, and what a byte takes from compute both ways."""
        up, down, lost_up, lost_down = link.tolist()
        promote, demote = prices.promote * up + prices.lost * lost_up, prices.demote * down + prices.lost * lost_down
        return Priced(replace(prices, promote=promote, demote=demote), exchanges=self.work.exchanges)

    def _windows(self, rows: NDArray[np.int64] | slice) -> _Windows:
        runs, n = self.runs, 2 * self.work.n_layers
        last, by = runs.last[rows], runs.next_layer[rows]
        after = last + 1
        low = last if self.work.exchanges else after  # in the layer of the use itself, or behind it
        at_birth = runs.born[rows] & (runs.first[rows] == last)
        leave, arrive, back = (Ranges.of(first, by, n) for first in (low, np.where(at_birth, after, last), low + 1))
        return _Windows(rows, after, by, low, leave, arrive, back)

    def _gaps_over(self, priced: Priced, over: _Windows) -> tuple[NDArray[np.float64], Window, Window, Window, Window]:
        """`_gaps` of runs whose units have one slow tier."""
        stay = priced.room.take(over.by) - priced.room.take(over.after)
        leave, arrive = priced.leave(over.leave, over.after), priced.arrive(over.arrive, over.by)
        back = priced.arrive(over.back, over.by)
        before = Ranges.of(over.low, np.where(np.isfinite(back.price), back.layer, over.by), 2 * self.work.n_layers)
        out = priced.leave(before, over.after)
        up, down = self._of_moves[:, over.rows]
        for window, each in ((leave, down), (arrive, up), (out, down), (back, up)):
            np.add(window.price, each, out=window.price)
        return stay, leave, arrive, out, back

    def _shortest(
        self, here: NDArray[np.float64], gap: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """(runs,) fast or not, and (units,) cost of the cheapest path; rings close.

        `here`: (2, runs) cost of each, fast and slow. `gap`: (2, 2, runs) of what follows it, by from and to.
        """
        runs, n_units = self.runs, len(self.nbytes)
        best_fast, best_cost = np.zeros(len(runs.head), bool), np.full(n_units, np.inf)
        ring = self.work.units.persistent
        some = runs.end_run >= 0
        # a transient ends as it may; a ring begins where it ends, so both beginnings are tried
        for units, opening, by_ordinal in ((some, 0, runs.by_ordinal), (some & ring, 1, runs.rings_by_ordinal)):
            cost = np.zeros((2, n_units))  # of the cheapest path that is fast, slow by now
            from_slow = np.zeros((2, len(runs.head)), bool)
            for number, rows in enumerate(by_ordinal):
                unit = runs.unit[rows]
                if number == 0:
                    cost[:, unit] = here[:, rows]
                    cost[1 - opening, unit[ring[unit]]] = np.inf
                    continue
                fast, slow = cost.take(unit, axis=1)[:, None] + gap.take(rows - 1, axis=2)
                from_slow[:, rows] = slow < fast
                cost[:, unit] = np.minimum(fast, slow) + here.take(rows, axis=1)
            rings = np.flatnonzero(units & ring)
            cost[:, rings] += gap[:, opening][:, runs.end_run[rings]]
            slow_end, total = cost[1] < cost[0], np.minimum(*cost)
            better = units & (total < best_cost)
            best_cost[better] = total[better]
            for rows in reversed(by_ordinal):
                unit = runs.unit[rows]
                slow = slow_end[unit]
                won = better[unit]
                best_fast[rows[won]] = ~slow[won]
                slow_end[unit] = np.where(slow, from_slow[1, rows], from_slow[0, rows])
        best_cost[~np.isfinite(best_cost)] = 0.0
        return best_fast, best_cost

    def _choice(
        self,
        fast: NDArray[np.bool_],
        parted: NDArray[np.bool_],
        leave: Window,
        arrive: Window,
        out: Window,
        back: Window,
    ) -> Choice:
        """Runs back to uses: within a run a unit stays; behind its last use comes the run's gap."""
        runs, m = self.runs, len(self.work.use_unit)
        both = fast & fast[runs.next_run] & runs.has_gap & parted
        choice = Choice(fast[runs.of], np.zeros(m, bool), *(np.zeros(m, np.int64) for _ in range(4)))
        choice.parted[runs.tail] = both
        choice.leave[runs.tail] = np.where(both, out.layer, leave.layer)
        choice.arrive[runs.tail] = np.where(both, back.layer, arrive.layer)
        choice.left[:], choice.arrived[:] = choice.leave + 1, choice.arrive + 1
        # it has until its use to come: what follows then need not wait for a layer that begins earlier
        late = runs.tail[both & self.work.fetched[runs.unit]]
        choice.arrived[late] = runs.next_layer[runs.of[late]]
        return choice


def _times(nbytes: NDArray[np.float64], price: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(price), nbytes * np.where(np.isfinite(price), price, 0.0), np.inf)


def _make_runs(work: Workload) -> _Runs:
    unit, layer = work.use_unit, work.use_layer
    m = len(unit)
    new = np.ones(m, bool)
    new[1:] = (unit[1:] != unit[:-1]) | (layer[1:] - layer[:-1] > 1)
    of = np.cumsum(new) - 1
    head = np.flatnonzero(new)
    tail = np.append(head[1:], m) - 1 if m else head
    run_unit = unit[head]
    first_run = np.searchsorted(run_unit, np.arange(len(work.units) + 1))
    number = np.arange(len(head))
    start, end = first_run[run_unit], first_run[run_unit + 1] - 1
    persistent = work.units.persistent[run_unit]
    wraps = (number == end) & persistent
    next_run = np.where(number == end, start, number + 1)
    ordinal = number - start
    order = np.argsort(ordinal, kind="stable")
    cuts = np.searchsorted(ordinal[order], np.arange(1, int(ordinal.max(initial=0)) + 1))
    by_ordinal = np.split(order, cuts) if len(head) else []
    counted = np.diff(first_run)
    return _Runs(
        of=of,
        head=head,
        tail=tail,
        unit=run_unit,
        first=layer[head],
        last=layer[tail],
        next_run=next_run,
        next_layer=layer[head][next_run] + np.where(wraps, work.n_layers, 0),
        has_gap=(number != end) | wraps,
        born=(number == start) & ~persistent,
        dying=np.flatnonzero((number == end) & ~wraps),
        by_ordinal=by_ordinal,
        rings_by_ordinal=[rows[persistent[rows]] for rows in by_ordinal],
        end_run=np.where(counted > 0, first_run[1:] - 1, -1),
    )
