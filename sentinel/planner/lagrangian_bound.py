"""What prices prove: whatever time, room and links cost, no plan is faster than the sum of everyone's cheapest fates.

Lagrange: rows that join groups leave the program and their prices enter its cost; what is left falls apart into one
shortest path a group, fast or slow in each layer of its life. The sum is a bound whatever the prices are, at the best
ones the optimum of the program itself. So a solver need not be believed: what it ends with is prices, and these prove.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.bound_program import Program


class Certifier:
    """Proves bounds of one program."""

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
