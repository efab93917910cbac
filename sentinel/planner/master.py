"""The master program: how much of each timeline happens, so that room and links suffice and the step is shortest.

Dantzig-Wolfe decomposition: columns are timelines of units that `pricing` found cheapest at prices of this program. The
solver keeps its basis from one round to the next.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import compress

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.core.ragged import positions
from sentinel.planner.decision import Choice, Episodes, episodes_of, held_layers
from sentinel.planner.linear_program import Entries, colwise, solver_of
from sentinel.planner.pricing import Prices
from sentinel.planner.relaxation import PinnedCandidates, layer_base_ms
from sentinel.planner.workload import Workload


class Columns:
    """A growing table. Column c is a timeline of unit `unit[c]`, with the episodes and fast uses that name it.

    `use_column, use_row`: the uses that fast memory serves. `episodes` and `episode_column` likewise.
    """

    def __init__(self, work: Workload) -> None:
        self.work = work
        self._marks: list[NDArray[np.uint64]] = []  # (units,) of the timelines of each choice, 0 of a unit without
        self._column_marks: list[NDArray[np.uint64]] = []  # of the columns that each choice added
        self._units: list[NDArray[np.int64]] = []
        self._uses: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._episodes: list[Episodes] = []
        self._episode_columns: list[NDArray[np.int64]] = []
        self.n = 0

    def copy(self) -> Columns:
        """A table with the same columns, which grows by itself."""
        made = Columns(self.work)
        made.__dict__.update({name: copy(value) for name, value in vars(self).items() if name != "work"})
        return made

    def only(self, keep: NDArray[np.bool_], work: Workload) -> Columns:
        """A table with these columns alone, in their order, for a workload of the same units and uses."""
        made, unit = Columns(work), self.unit[keep]
        marks, number = np.concatenate(self._column_marks)[keep], np.cumsum(keep) - 1
        (owner, episodes), (column, row) = self.episodes, self.uses
        some, used = np.flatnonzero(keep[owner]), keep[column]
        made._units, made._column_marks, made.n = [unit], [marks], len(unit)
        made._episodes, made._episode_columns = [_take(episodes, some)], [number[owner[some]]]
        made._uses = [(number[column[used]], row[used])]
        order = np.argsort(unit, kind="stable")
        ordinal = positions(np.bincount(unit, minlength=len(work.units)))  # of each column among those of its unit
        for level in range(int(ordinal.max(initial=-1)) + 1):
            rows, known = order[ordinal == level], np.zeros(len(work.units), np.uint64)
            known[unit[rows]] = marks[rows]
            made._marks.append(known)
        return made

    def add(self, choice: Choice) -> int:
        """Add what is new in a choice; returns how many columns were."""
        episodes = episodes_of(self.work, choice)
        marks = _marks(self.work, episodes, choice)
        new = marks > 0
        for before in self._marks:
            new &= marks != before
        self._marks.append(marks)
        fresh = np.flatnonzero(new)
        self._column_marks.append(marks[fresh])
        number = np.full(len(self.work.units), -1, np.int64)
        number[fresh] = self.n + np.arange(len(fresh))
        self.n += len(fresh)
        rows = np.flatnonzero((number[episodes.unit] >= 0) if len(episodes) else np.zeros(0, bool))
        self._units.append(fresh)
        self._episodes.append(_take(episodes, rows))
        self._episode_columns.append(number[episodes.unit[rows]])
        used = np.flatnonzero(choice.fast & (number[self.work.use_unit] >= 0))
        self._uses.append((number[self.work.use_unit[used]], used))
        return len(fresh)

    @property
    def unit(self) -> NDArray[np.int64]:
        """(columns,) unit of each."""
        return np.concatenate(self._units)

    @property
    def uses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(column, use row) of every use that fast memory serves."""
        return tuple(np.concatenate(x) for x in zip(*self._uses, strict=True))  # type: ignore[return-value]

    @property
    def episodes(self) -> tuple[NDArray[np.int64], Episodes]:
        """(column of each episode, the episodes)."""
        names = Episodes.__dataclass_fields__
        joined = {name: np.concatenate([getattr(e, name) for e in self._episodes]) for name in names}
        return np.concatenate(self._episode_columns), Episodes(**joined)


def _take(episodes: Episodes, rows: NDArray[np.int64]) -> Episodes:
    return Episodes(**{name: getattr(episodes, name)[rows] for name in Episodes.__dataclass_fields__})


def _marks(work: Workload, episodes: Episodes, choice: Choice) -> NDArray[np.uint64]:
    """(units,) a fingerprint of each unit's timeline; 0 of a unit that is never in fast memory."""
    out = np.zeros(len(work.units), np.uint64)
    columns = (episodes.held_from, episodes.begin, episodes.end, episodes.held_until)
    mark = np.zeros(len(episodes), np.uint64)
    for column in columns:
        mark = (mark ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mark ^= mark >> np.uint64(29)
    np.add.at(out, episodes.unit, mark)
    served = np.flatnonzero(choice.fast)
    np.add.at(out, work.use_unit[served], (served.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9))
    there = np.bincount(episodes.unit, minlength=len(out)) > 0
    return np.where(there, np.maximum(out, np.uint64(1)), np.uint64(0))


MOVE_COST = 1e-3
"""ms a GB moved: a tie-breaker against moves that save no time."""

_SLOW_COST = 1e-5
"""ms a ms of slow accesses: a tie-breaker, so that what does not matter for time is fast where there is room."""


@dataclass(frozen=True, eq=False)
class Mix:
    """`share`: (columns,) of each class's bytes; `pinned`: (groups,) of each group's of `PinnedCandidates`.

    `prices`: what room, links and slow time are worth here. `step_ns`: time of the step. `duals`: the solver's own
    of the rows of time, room and links, in this order. `gap`: of a mix of wholes, by what share of its time another one
    of the same columns may be shorter at most.
    """

    share: NDArray[np.float64]
    pinned: NDArray[np.float64]
    prices: Prices
    step_ns: float
    duals: NDArray[np.float64]
    gap: float | None = None


class Master:
    """Rows: time of a layer; room at its instants; links; what units hold, by layer; each unit at most once, and
    just once where it cannot be used in slow memory.

    Columns: T[k], time of layer k in ms without what moves take from compute; H[k], GB that units hold in it; the
    `PinnedCandidates`; the `Columns`. What moves take from compute is in their costs, and links carry on meanwhile.
    `nearest`: `drop_far` keeps the columns of the basis and at most so many others, those of the least reduced cost;
    None: all.
    """

    def __init__(
        self, work: Workload, columns: Columns, candidates: PinnedCandidates, *, nearest: int | None = None
    ) -> None:
        self.work, self.columns, self.candidates, self.per_s = work, columns, candidates, work.per_s
        self.nearest = nearest
        self.length = length = work.n_layers
        self.links = 2 if work.machine.full_duplex else 1
        self.n_rooms = int(candidates.exists.sum())
        self.link_row = length + self.n_rooms
        self.held_row = self.link_row + self.links * length
        self.unit_row = self.held_row + length
        self.first = 2 * length + len(candidates)
        self.added = 0
        self._lost_ms = np.zeros(0)  # what moves of each column take from compute
        self._left = np.ones(len(work.units))
        least = np.zeros(len(candidates))
        least[candidates.use_group[work.keeps_shorts[candidates.use_layer]]] = 1.0
        least[candidates.unit_class >= 0] = 0.0
        self._pinned_limits = (least, np.ones(len(candidates)))
        self.highs = self._frame()

    def _frame(self) -> highspy.Highs:
        """The program without columns."""
        length, candidates, n_rows = self.length, self.candidates, self.unit_row + len(self.work.units)
        base, least = layer_base_ms(self.work, candidates)
        layers = np.arange(length)
        long = np.flatnonzero(candidates.unit_class >= 0)
        ones = np.ones(length)
        entries: Entries = [
            (layers, layers, ones),
            (candidates.use_layer, 2 * length + candidates.use_group, candidates.use_ns / 1e6),
            (length + np.arange(self.n_rooms), length + candidates.row_layer, np.ones(self.n_rooms)),
            (length + candidates.row, 2 * length + candidates.row_group, candidates.row_bytes / 1e9),
            (self.unit_row + candidates.unit_class[long], 2 * length + long, np.ones(len(long))),
            (self.held_row + layers, length + layers, ones),
            (self.held_row + layers[1:], length + layers[:-1], -ones[1:]),
        ]
        entries += [(self.link_row + link * length + layers, layers, -ones) for link in range(self.links)]
        saved = np.bincount(candidates.use_group, candidates.use_ns, len(candidates))
        endless = np.full(length, np.inf)
        cost = np.concatenate([ones, np.zeros(length), -_SLOW_COST * saved / 1e6])
        columns = (
            np.concatenate([least, np.zeros(length), self._pinned_limits[0]]),
            np.concatenate([endless, endless, self._pinned_limits[1]]),
        )
        low, high = np.full(n_rows, -np.inf), np.zeros(n_rows)
        low[:length], high[:length] = base, np.inf
        high[length : self.link_row] = self.work.budget_bytes / 1e9
        low[self.held_row : self.unit_row] = 0.0
        high[self.unit_row :] = 1.0
        low[self.unit_row :][self.work.fetched] = 1.0
        return solver_of(cost, columns, (low, high), entries, solver="simplex")

    def fix_pool(self, work: Workload, free: NDArray[np.float64], left: NDArray[np.float64]) -> None:
        """Fix what is pinned. `work.pool_ns`: what that costs; `free`: (L,) bytes left to the rest; `left`: (classes,)
        share of each class that is not pinned."""
        nobody = np.zeros(len(self.candidates))
        self._bound_pinned(nobody, nobody)
        self._bound_layers(layer_base_ms(work, None), free[self.candidates.row_layer] / 1e9)
        self._bound_classes(left)

    def release_pool(self) -> None:
        """Undo `fix_pool`."""
        self._bound_pinned(*self._pinned_limits)
        room = np.full(self.n_rooms, self.work.budget_bytes / 1e9)
        self._bound_layers(layer_base_ms(self.work, self.candidates), room)
        self._bound_classes(np.ones(len(self.work.units)))

    def _bound_pinned(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        columns = 2 * self.length + np.arange(len(self.candidates), dtype=np.int32)
        self.highs.changeColsBounds(len(columns), columns, low, high)

    def _bound_layers(
        self, base_and_least: tuple[NDArray[np.float64], NDArray[np.float64]], room: NDArray[np.float64]
    ) -> None:
        base, least = base_and_least
        layers = np.arange(self.length, dtype=np.int32)
        self.highs.changeColsBounds(self.length, layers, least, np.full(self.length, np.inf))
        self.highs.changeRowsBounds(self.length, layers, base, np.full(self.length, np.inf))
        rooms = self.length + np.arange(self.n_rooms, dtype=np.int32)
        self.highs.changeRowsBounds(self.n_rooms, rooms, np.full(self.n_rooms, -np.inf), room)

    def _bound_classes(self, left: NDArray[np.float64]) -> None:
        changed = np.flatnonzero(left != self._left)
        rows = (self.unit_row + changed).astype(np.int32)
        least = np.where(self.work.fetched[changed], left[changed], -np.inf)
        self.highs.changeRowsBounds(len(rows), rows, least, left[changed])
        self._left = left

    def limit_pinned(self, groups: NDArray[np.int64], low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        """Bound the shares of these groups."""
        for limits, given in zip(self._pinned_limits, (low, high), strict=True):
            limits[groups] = given
        self._bound_pinned(*self._pinned_limits)

    def drop_far(self, mix: Mix) -> Mix:
        """Drop what `nearest` says of the columns that were there when `mix` was solved, which is the last one; the
        same mix of the columns that are left. `solve` comes next."""
        if self.nearest is None:
            return mix
        keep = self._near(self.nearest)
        gone, basis = np.flatnonzero(~keep), self._basis_of(keep)
        if not len(gone):
            return mix
        self.highs.deleteCols(len(gone), (self.first + gone).astype(np.int32))
        self.highs.setBasis(basis)  # the solver forgets it where columns go
        self._lost_ms = self._lost_ms[keep]
        self.columns = self.columns.only(np.append(keep, np.ones(self.columns.n - self.added, bool)), self.work)
        self.added -= len(gone)
        return replace(mix, share=mix.share[keep])

    def continued(self, work: Workload, most: int) -> Master | None:
        """A master of `work`, which has the same units, uses and candidates, that begins with the basis of this one and
        at most so many other columns. None where what was solved last failed."""
        if not self._is_solved:
            return None
        keep = self._near(most)
        other = Master(work, self.columns.only(keep, work), self.candidates, nearest=self.nearest)
        other._add()
        other.highs.setBasis(self._basis_of(keep))
        return other

    @property
    def _is_solved(self) -> bool:
        return bool(self.highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)

    def _near(self, most: int) -> NDArray[np.bool_]:
        """(columns,) those of the basis and of the mix that was solved last, and at most so many others, those of the
        least reduced cost."""
        found, basic = self.highs.getSolution(), highspy.HighsBasisStatus.kBasic
        keep = np.array([status == basic for status in self.highs.getBasis().col_status[self.first :]], bool)
        keep |= np.array(found.col_value)[self.first :] > 0
        others = np.flatnonzero(~keep)
        reduced = np.array(found.col_dual)[self.first :][others]
        keep[others[np.argsort(reduced, kind="stable")[:most]]] = True
        return keep

    def _basis_of(self, keep: NDArray[np.bool_]) -> highspy.HighsBasis:
        """The solver's basis without the columns that are not kept, none of which is basic."""
        basis: highspy.HighsBasis = self.highs.getBasis()
        basis.col_status = list(compress(basis.col_status, [*[True] * self.first, *keep.tolist()]))
        return basis

    def stop_after(self, seconds: float) -> None:
        """From now on `solve` fails where the solver has taken so many seconds by its own clock."""
        self.highs.setOptionValue("time_limit", seconds)

    def solve(self) -> Mix | None:
        """The best mix of all columns there are by now; None if the solver fails."""
        self._add()
        self.highs.run()
        if not self._is_solved:
            return None
        found = self.highs.getSolution()
        x, dual = np.array(found.col_value), np.array(found.row_dual)
        length, links = self.length, self.links
        moment = np.zeros(self.candidates.exists.shape)
        moment[self.candidates.exists] = np.maximum(-dual[length : self.link_row], 0.0) * 1e-3  # ms a GB -> ns a byte
        paid = [np.maximum(-dual[self.link_row + link * length :][:length], 0.0) for link in range(links)]
        move = [paid[way % links] * (1e9 / self.per_s[way]) + MOVE_COST * 1e-3 for way in (0, 1)]
        slow = np.clip(dual[:length], 0.0, 1.0) + _SLOW_COST
        lost = np.clip(1.0 - sum(paid), 0.0, 1.0)
        prices = Prices(moment.sum(axis=1), move[0], move[1], slow, moment, lost)
        share, step_ns = x[self.first :], self._step_ns(x)
        return Mix(share, x[2 * length : self.first], prices, step_ns, dual[: self.held_row])

    def _step_ns(self, x: NDArray[np.float64]) -> float:
        return (float(x[: self.length].sum()) + float((x[self.first :] * self._lost_ms).sum())) * 1e6

    def solve_whole(self, nodes: int, seconds: float = 0.0) -> Mix | None:
        """The best mix found in which every share is 0 or 1, by a search of so many nodes, and seconds unless these are
        0, then to a smaller gap; None if there is none."""
        kind = highspy.HighsVarType.kInteger
        for column in range(self.first, self.first + self.added):
            self.highs.changeColIntegrality(column, kind)
        enough = 1e-4 if seconds else 2e-3
        limits = (("mip_max_nodes", nodes), ("mip_rel_gap", enough), ("time_limit", seconds or np.inf))
        for option, setting in (("solver", "choose"), *limits):
            self.highs.setOptionValue(option, setting)
        self.highs.run()
        found = self.highs.getSolution()
        if not found.value_valid:
            return None
        x, nothing = np.array(found.col_value), np.zeros(self.length)
        instants = np.zeros(self.candidates.exists.shape)
        prices = Prices(nothing, nothing, nothing, nothing, instants, nothing)
        share, step_ns = np.rint(x[self.first :]), self._step_ns(x)
        duals, gap = np.zeros(self.held_row), float(self.highs.getInfo().mip_gap)
        return Mix(share, x[2 * self.length : self.first], prices, step_ns, duals, gap)

    @property
    def spent_s(self) -> float:
        """Seconds in the solver so far, by its own clock."""
        return float(self.highs.getRunTime())

    def _add(self) -> None:
        """Hand the solver the columns that are new."""
        work, length = self.work, self.length
        known, n = self.added, self.columns.n
        if n == known:
            return
        self.added = n
        column, rows = self.columns.uses
        new = column >= known
        column, rows = column[new] - known, rows[new]
        saved = work.use_ns[rows] / 1e6
        owner, episodes = self.columns.episodes
        new = owner >= known
        owner = owner[new] - known
        gb = work.units.nbytes[episodes.unit[new]] / 1e9
        start, stop = (layer[new] for layer in held_layers(work, episodes))
        zero = (start % length + stop - start > length) | (start % length == 0)
        # H[0] is a sum, every other H[k] what begins and ends with it: sums in every row would be dense
        entries: Entries = [
            (work.use_layer[rows] % length, column, saved),
            (np.full(int(zero.sum()), self.held_row), owner[zero], -gb[zero]),
            (self.unit_row + self.columns.unit[known:], np.arange(n - known), np.ones(n - known)),
        ]
        for edge, sign in ((start, -1.0), (stop, 1.0)):
            some = np.flatnonzero((edge % length != 0) & (stop - start < length))
            entries.append((self.held_row + edge[some] % length, owner[some], sign * gb[some]))
        cost, lost = -np.bincount(column, saved, n - known) * _SLOW_COST, np.zeros(n - known)
        ways = ((episodes.promote[new], episodes.held_from[new]), (episodes.demote[new], episodes.end[new]))
        for way, (wanted, layer) in enumerate(ways):
            moving = np.flatnonzero(wanted)
            row = self.link_row + (way % self.links) * length + layer[moving] % length
            unit = episodes.unit[new][moving]
            slowed = gb[moving] * work.move_slowdown[way, unit]
            taken = gb[moving] * work.lost_ns_per_byte[way, unit] * 1e3  # ms of compute, in which links carry on
            entries.append((row, owner[moving], slowed * (1e12 / self.per_s[way]) - taken))
            if self.links > 1 and taken.any():
                other = self.link_row + (1 - way) * length + layer[moving] % length
                entries.append((other, owner[moving], -taken))
            cost += np.bincount(owner[moving], slowed * MOVE_COST, n - known)
            lost += np.bincount(owner[moving], taken + work.lost_ns_of_moves[way, unit] / 1e6, n - known)
        self._lost_ms = np.append(self._lost_ms, lost)
        cost += lost
        starts, index, value = colwise(entries, n - known, self.unit_row + len(work.units))
        none, all_of_it = np.zeros(n - known), np.ones(n - known)
        self.highs.addCols(n - known, cost, none, all_of_it, len(index), starts[:-1], index, value)
