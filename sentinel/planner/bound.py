"""A bound that no plan can beat: a linear relaxation, solved by HiGHS.

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
any run. Solved by interior point without crossover (4-7 times faster). With several slower tiers see `bound_tiers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import base_ns
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.bound_tiers import least_extra_ns, most_saved_ns, saved_ns
from sentinel.planner.relaxed import Groups, make_groups, room_rows

_SLACK = 1e-6
"""Relative tolerance of the solver, taken off its answer."""


@dataclass(frozen=True)
class Bound:
    """`step_ns`: no plan's step is shorter. `loose`: why it may be far below the best plan; empty if it is tight."""

    step_ns: int
    loose: str = ""


def bound(profile: Profile, machine: Machine, *, time_limit_s: float = 60.0) -> Bound:
    """The bound of every plan within `machine.fast.capacity_bytes`; the all-fast time where the solver gives up."""
    compute, traffic = base_ns(profile, machine)
    floor = compute + traffic if machine.flops_per_s is None else np.maximum(compute, traffic)
    least = int(floor.sum() * (1 - _SLACK))
    *middle, extra = least_extra_ns(profile, machine)
    groups = make_groups(profile, extra, machine.fast.capacity_bytes)
    if not len(groups.nbytes) or not extra.any():
        return Bound(least)
    program = _Program(groups, profile, machine, compute, traffic)
    for tier, (here, behind) in enumerate(pairwise([*middle, extra]), 1):
        program.middle_tier(profile, sum(t.capacity_bytes for t in machine.tiers[1 : tier + 1]), here, behind)
    value, loose = _solve(program, time_limit_s)
    if value is None:
        return Bound(least, loose)
    footprint = int(profile.tensors["nbytes"][profile.tensors["managed"]].sum())
    if any(0 < tier.capacity_bytes < footprint for tier in machine.tiers[1:-1]):
        loose = "what a middle tier holds may change from layer to layer at no cost in it"
    return Bound(max(int(value * (1 - _SLACK)), least), loose)


class _Program:
    """The rows and columns. Columns: T[k]; q of each group; y and p of it in each layer of its life. Units: GB, ms."""

    def __init__(
        self,
        groups: Groups,
        profile: Profile,
        machine: Machine,
        compute: NDArray[np.float64],
        traffic: NDArray[np.float64],
    ) -> None:
        self.length = profile.n_layers
        self.groups = groups
        width = groups.stop - groups.start
        self.begin = self.length + len(width)
        self.first = self.begin + np.append(0, np.cumsum(width))  # y of group g in its life's j-th layer: first[g] + j
        self.n_y = int(width.sum())
        self.group_of = np.repeat(np.arange(len(width)), width)
        self.age = np.arange(self.n_y) - np.repeat(self.first[:-1] - self.begin, width)
        self.layer_of = (groups.start[self.group_of] + self.age) % self.length
        self.gb = groups.nbytes / 1e9
        self._number_promotions()
        self.entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self.low: list[NDArray[np.float64]] = []
        self.high: list[NDArray[np.float64]] = []
        self.n_rows = 0
        self.most_saved_ms: list[NDArray[np.float64]] = []
        self._time_rows(machine, compute, traffic)
        self._room(profile, machine)
        self._moves(machine)

    def _number_promotions(self) -> None:
        """`promotion`: column of each p by its y, -1 in the last layer of a life, or where nothing can move."""
        g = self.groups
        last = self.age == (g.stop - g.start)[self.group_of] - 1
        moves = (~last | g.persistent[self.group_of]) & (self.length > 1)
        self.promotion = np.full(self.n_y, -1, np.int64)
        self.promotion[moves] = self.begin + self.n_y + np.arange(int(moves.sum()))
        self.n_columns = self.begin + self.n_y + int(moves.sum())

    def _rows(self, n: int, low: NDArray[np.float64], high: NDArray[np.float64]) -> int:
        first, self.n_rows = self.n_rows, self.n_rows + n
        self.low.append(np.broadcast_to(low, n))
        self.high.append(np.broadcast_to(high, n))
        return first

    def _put(self, row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64] | float) -> None:
        keep = np.broadcast_to(value, len(row)) != 0
        self.entries.append((row[keep], column[keep], np.broadcast_to(value, len(row))[keep]))

    def _time_rows(self, machine: Machine, compute: NDArray[np.float64], traffic: NDArray[np.float64]) -> None:
        """T[k] + Σ value · y ≥ what it takes with nothing in fast memory; T[k] ≥ compute is a column bound."""
        g = self.groups
        all_slow = np.bincount(g.use_layer, g.use_ns, self.length)
        base = traffic if machine.flops_per_s is not None else compute + traffic
        self.least_ms = np.maximum(compute, traffic if machine.flops_per_s is not None else compute) / 1e6
        self.time_row = first = self._rows(self.length, (base + all_slow) / 1e6, np.array(np.inf))
        layers = np.arange(self.length)
        self._put(first + layers, layers, 1.0)
        column = self.first[g.use_group] + (g.use_layer - g.start[g.use_group]) % self.length
        self._put(first + g.use_layer, column, g.use_ns / 1e6)
        self._put(first + g.use_layer, self.length + g.use_group, g.use_ns / 1e6)
        once = self._rows(len(g.use_group), np.array(-np.inf), np.array(1.0))
        for part in (column, self.length + g.use_group):
            self._put(once + np.arange(len(part)), part, 1.0)

    def middle_tier(
        self, profile: Profile, capacity_bytes: int, here_ns: NDArray[np.float64], behind_ns: NDArray[np.float64]
    ) -> None:
        """S[k], what the slower tiers up to one save in layer k against the tier behind it, of what is not fast."""
        g, length = self.groups, self.length
        here, behind = (saved_ns(profile, g, extra, g.use_ns) for extra in (here_ns, behind_ns))
        saved = np.maximum(here - behind, 0.0) / 1e6
        columns = self.n_columns + np.arange(length)
        self.n_columns += length
        self.most_saved_ms.append(most_saved_ns(profile, g, saved, capacity_bytes))
        self._put(self.time_row + np.arange(length), columns, 1.0)
        first = self._rows(length, np.array(-np.inf), np.bincount(g.use_layer, saved, length).astype(np.float64))
        self._put(first + np.arange(length), columns, 1.0)
        column = self.first[g.use_group] + (g.use_layer - g.start[g.use_group]) % length
        for part in (column, length + g.use_group):
            self._put(first + g.use_layer, part, saved)

    def _room(self, profile: Profile, machine: Machine) -> None:
        """At chosen instants of each layer, what is alive and in fast memory or on its way from or to it fits."""
        room = room_rows(profile, self.groups)
        first = self._rows(room.n_rows, np.array(-np.inf), np.array(machine.fast.capacity_bytes / 1e9))
        row, group, age = room.moving
        here = self.first[group] + age
        born = (age == 0) & ~self.groups.persistent[group] | (self.length == 1)
        self._put(first + row[born], here[born], self.gb[group[born]])
        row, group, age, here = (column[~born] for column in (row, group, age, here))
        before = np.where(age == 0, here + self.length - 1, here - 1)  # round the ring
        self._put(first + row, before, self.gb[group])
        for y in (before, here):
            moves = self.promotion[y - self.begin] >= 0
            self._put(first + row[moves], self.promotion[y[moves] - self.begin], self.gb[group[moves]])
        row, group = room.staying
        self._put(first + row, self.length + group, self.gb[group])
        width = self.groups.stop - self.groups.start
        self.no_q = np.flatnonzero(self.groups.persistent)
        self.no_y = self.first[:-1][~self.groups.persistent & (width == 1)]

    def _moves(self, machine: Machine) -> None:
        """y[k+1] ≤ y[k] + p[k]; the links carry p and d = y[k] + p[k] - y[k+1]: the one in k, the other in k + 1."""
        g = self.groups
        moving = np.flatnonzero(self.promotion >= 0)
        p = self.promotion[moving]
        last = self.age[moving] == (g.stop - g.start)[self.group_of[moving]] - 1
        y = self.begin + moving
        after = np.where(last, self.first[self.group_of[moving]], y + 1)
        first = self._rows(len(moving), np.array(0.0), np.array(np.inf))
        rows = first + np.arange(len(moving))
        for column, sign in ((y, 1.0), (p, 1.0), (after, -1.0)):
            self._put(rows, column, sign)
        layer, gb = self.layer_of[moving], self.gb[self.group_of[moving]]
        tiers = [t for t in range(1, len(machine.tiers)) if machine.tiers[t].capacity_bytes >= PAGE_BYTES] or [1]
        up = 1e3 / max(machine.link(t, 0).bandwidth_bytes_per_s / 1e9 for t in tiers) * gb
        down = 1e3 / max(machine.link(0, t).bandwidth_bytes_per_s / 1e9 for t in tiers) * gb
        shared = not machine.full_duplex
        promote = self._rows(self.length, np.array(-np.inf), np.array(0.0))
        demote = promote if shared else self._rows(self.length, np.array(-np.inf), np.array(0.0))
        layers = np.arange(self.length)
        for link in {promote, demote}:
            self._put(link + layers, layers, -1.0)
        self._put(promote + layer, p, up)
        for column, sign in ((y, 1.0), (p, 1.0), (after, -1.0)):
            self._put(demote + (layer + 1) % self.length, column, sign * down)


def _solve(program: _Program, time_limit_s: float) -> tuple[float | None, str]:
    """(least ns, why loose)."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.n_columns, program.n_rows
    cost, low, high = np.zeros(lp.num_col_), np.zeros(lp.num_col_), np.ones(lp.num_col_)
    cost[: program.length] = 1.0
    low[: program.length], high[: program.length] = program.least_ms, np.inf
    high[program.length + program.no_q] = high[program.no_y] = 0.0
    if program.most_saved_ms:
        saved = np.concatenate(program.most_saved_ms)
        high[-len(saved) :] = saved
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, low, high
    lp.row_lower_, lp.row_upper_ = np.concatenate(program.low), np.concatenate(program.high)
    row, column, value = (np.concatenate(parts) for parts in zip(*program.entries, strict=True))
    row, column, value = _summed(row, column, value, lp.num_col_)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(row, np.arange(lp.num_row_ + 1)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = column.astype(np.int32), value
    solver = highspy.Highs()
    for option, setting in (
        ("output_flag", False),
        ("solver", "ipm"),
        ("run_crossover", "off"),
        ("threads", 1),
        ("time_limit", time_limit_s),
        ("primal_feasibility_tolerance", 1e-7),
        ("dual_feasibility_tolerance", 1e-7),
    ):
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kTimeLimit:
        return None, f"the solver did not end within {time_limit_s:g} s; this is the time with all in fast memory"
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kUnknown):
        return (
            None,
            f"the solver ended with {solver.modelStatusToString(status)}; this is the time with all in fast memory",
        )
    info = solver.getInfo()
    if status == highspy.HighsModelStatus.kUnknown and info.max_primal_infeasibility > 1e-4:
        return None, "the solver did not converge; this is the time with all in fast memory"
    return float(info.objective_function_value) * 1e6, ""


def _summed(
    row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64], n_columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Entries by row and column, those of one place added up."""
    key, place = np.unique(row * n_columns + column, return_inverse=True)
    return key // n_columns, key % n_columns, np.bincount(place, value, len(key)).astype(np.float64)
