"""Settling: what stays in fast memory is packed, and the rest finds its place around it. And its repair."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.columns import Columns
from sentinel.planner.master import Master, Mix
from sentinel.planner.reserve import Reserve, pool_ns, reserve
from sentinel.planner.timelines import Pricer
from sentinel.planner.workload import Workload

_ENOUGH = 2e-4
"""Repricing ends when a round shortens the step by less than this share."""
_LEAST_NS = 1e3
"""What promises to save less is not tried."""


@dataclass(frozen=True, eq=False)
class Settled:
    """`slow`: (short,) short-lived tensors that are to be in slow memory. `short`: what is packed, units among it.

    `mix`: the best mix around that.
    """

    slow: NDArray[np.bool_]
    short: Reserve
    mix: Mix


class Settler:
    """Settles choices for one workload. `merged`, `of`: its families and the family of each unit."""

    def __init__(
        self, work: Workload, merged: Workload, of: NDArray[np.int64], master: Master, pricer: Pricer, columns: Columns
    ) -> None:
        self.work, self.merged, self.of = work, merged, of
        self.master, self.pricer, self.columns = master, pricer, columns
        self.converged = False

    def priced(self, rounds: int) -> Mix | None:
        """Master and pricing in turn, at most so often, until nothing new helps; None if the solver fails.

        `converged`: whether it came so far.
        """
        mix, self.converged = self.master.solve(), True
        for _ in range(rounds):
            if mix is None or not self.columns.add(self.pricer.best(mix.prices)[0]):
                break
            better = self.master.solve()
            if better is None:
                break
            gained, mix = mix.step_ns - better.step_ns, better
            if gained < _ENOUGH * better.step_ns:
                break
        else:
            self.converged = False
        return mix

    def settle(self, slow: NDArray[np.bool_], units: NDArray[np.int64], rounds: int) -> Settled | None:
        """Pack the short-lived tensors that are not `slow` and these units; the master stays settled until released."""
        work, merged = self.work, self.merged
        short = reserve(work, work.budget_bytes, slow, units)
        left = (work.budget_bytes - short.held_bytes).astype(np.float64)
        inside = np.bincount(self.of[short.pooled], work.units.nbytes[short.pooled], len(merged.units))
        fixed = replace(merged, pool_ns=pool_ns(work, short))
        self.master.settle(fixed, left, 1.0 - inside / np.maximum(merged.units.nbytes, 1))
        mix = self.priced(rounds)
        return None if mix is None else Settled(slow | (short.tier > 0), short, mix)

    def repaired(self, best: Settled, trials: int, enough_ns: float) -> Settled:
        """`best` after so many trials, fewer where the step takes no longer than `enough_ns`.

        Who isn't worth the room that it holds, at the prices there, gives it up; who is worth more than its room gets
        some. One at a time, each at most once, kept where the step gets shorter.
        """
        tried = np.zeros(len(self.work.units) + len(best.slow), bool)
        for _ in range(trials):
            if best.mix.step_ns <= enough_ns:
                break
            promised = np.where(tried, -np.inf, self._promises(best))
            row = int(promised.argmax()) if len(promised) else -1
            if row < 0 or promised[row] < _LEAST_NS:
                break
            tried[row] = True
            pooled, slow = np.zeros(len(self.work.units), bool), best.slow.copy()
            pooled[best.short.pooled] = True
            if row < len(pooled):
                pooled[row] ^= True
            else:
                slow[row - len(pooled)] ^= True
            found = self.settle(slow, np.flatnonzero(pooled), 2)
            if found is not None and found.mix.step_ns < best.mix.step_ns * (1 - 1e-6):
                best = found
        return best

    def _promises(self, at: Settled) -> NDArray[np.float64]:
        """(units + short,) ns that changing sides would save each unit and short-lived tensor, by room prices."""
        work, prices, units = self.work, at.mix.prices, self.work.units
        room = np.append(0.0, np.cumsum(np.tile(prices.room, 2)))
        saved = np.bincount(work.use_unit, work.use_ns * prices.slow[work.use_layer % work.n_layers], len(units))
        gain = saved - units.nbytes * (room[units.stop] - room[units.start])
        gain[at.short.pooled] *= -1.0
        gain[units.persistent] = -np.inf
        t = work.profile.tensors[units.short]
        short = work.short_ns * prices.slow[t["start"]] - t["nbytes"] * prices.room[t["start"]]
        return np.append(gain, np.where(at.slow, short, -short))
