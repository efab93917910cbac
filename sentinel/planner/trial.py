"""Test and trial (paper, section IV): where prefetches come late for lack of time, wait for them or leave them.

The runtime tries both for a step each; a planner tries both in the simulator. Whatever is faster is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES, Run

_LATE = OUTCOMES.index("late")
_MOST_TRIALS = 16


def test_and_trial(
    granted: NDArray[np.bool_],
    starts: NDArray[np.int64],
    draw: Callable[[NDArray[np.bool_]], Plan],
    run: Callable[[Plan], Run],
) -> tuple[NDArray[np.bool_], Plan, Run]:
    """`granted` without the episodes that are better left in slow memory, with its plan and run.

    `starts`: layer in which an episode's promotion starts, -1 without one. In turn, from the layer that waits
    longest: leave out all promotions that are due there and late.
    """
    plan = draw(granted)
    best = run(plan)
    settled: set[int] = set()
    for _ in range(_MOST_TRIALS):
        waits = best.layers["stall_ns"]
        late = best.migrations[(best.migrations["outcome"] == _LATE) & (best.migrations["target"] == 0)]
        dues = {plan.migrations[i].due % plan.n_layers for i in _rows(plan, late)} - settled
        dues = {layer for layer in dues if waits[layer] > 0}
        if not dues:
            break
        layer = max(sorted(dues), key=lambda k: int(waits[k]))
        settled.add(layer)
        begun = {m.start for m in plan.migrations if m.target == 0 and m.due % plan.n_layers == layer}
        left = granted & ~np.isin(starts, sorted(begun))
        trial_plan = draw(left)
        trial = run(trial_plan)
        if (trial.step_ns or 0) < (best.step_ns or 0):
            granted, plan, best = left, trial_plan, trial
    return granted, plan, best


def _rows(plan: Plan, late: NDArray[np.void]) -> list[int]:
    """Indexes into `plan.migrations` of migrations of a run."""
    index = {(m.start, m.block, m.target): i for i, m in enumerate(plan.migrations)}
    return [index[(int(r["layer"]), int(r["block"]), int(r["target"]))] for r in late]
