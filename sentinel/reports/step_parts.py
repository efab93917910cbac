"""What the time of one step consists of: computing, slow accesses, waits, and moves beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.run import Run
from sentinel.reports.facts import Facts
from sentinel.reports.headline import began, nearest_median
from sentinel.simulator import lost_to_moves_ns


class StepParts(NamedTuple):
    """One step, in ns. `compute_ns` + `slow_ns` + `wait_ns` + `other_ns` = `total_ns`.

    `what`: which step. `slow_ns`: by how much accesses to slower memory took longer; None where the hardware's own
    slow memory was used, which tells nobody: then it is within `other_ns`. `other_ns`: all else, such as the engine's
    own work; of the predicted step what moves take from compute. `moving_ns`: while at least one move was under way;
    `hidden_ns`: of it, while no layer waited. None where nothing moves in this step.
    """

    what: str
    total_ns: int
    compute_ns: int
    slow_ns: int | None
    wait_ns: int
    other_ns: int
    moving_ns: int | None
    hidden_ns: int | None


def step_parts(facts: Facts) -> list[StepParts]:
    """The stock step, the predicted one and the applied one, as far as they are known."""
    plain = facts.headline["step_ns_plain"]
    found = [] if not plain else [StepParts("stock", plain, plain, 0, 0, 0, None, None)]
    if facts.simulated is not None:
        found += _of_run(facts.simulated, "predicted", None, known=True, machine=facts.machine)
    if facts.executed is not None:
        found += _of_run(facts.executed, "applied", plain, known=facts.executed.emulated)
    return found


def _of_run(run: Run, what: str, plain: int | None, *, known: bool, machine: Machine | None = None) -> list[StepParts]:
    """Of the step nearest the median; none without one that ran as planned. `known`: what slow accesses took is.
    `machine`: whose moves are no part of what computes."""
    step = median_step(run)
    if step is None:
        return []
    row, layers = run.steps[run.steps["step"] == step][0], run.layers[run.layers["step"] == step]
    total, wait = int(row["duration_ns"]), min(int(layers["stall_ns"].sum()), int(row["duration_ns"]))
    slow = min(int(layers["slow_ns"].sum()), total - wait) if known else None
    left = total - wait - (slow or 0)
    if machine is not None:
        lost = lost_to_moves_ns(run, machine)[run.layers["step"] == step]
        plain = left - min(int(lost.sum()), left)
    compute = left if plain is None else min(plain, left)
    moves = run.migrations[(run.migrations["step"] == step) & (run.migrations["moved_bytes"] > 0)]
    moves = moves[began(run, moves)]
    begin, end = int(row["start_ns"]), int(row["start_ns"]) + total
    moves["start_ns"], moves["stop_ns"] = (np.clip(moves[name], begin, end) for name in ("start_ns", "stop_ns"))
    moving, hidden = _moving(moves, layers)
    return [StepParts(what, total, compute, slow, wait, left - compute, moving, hidden)]


def median_step(run: Run) -> int | None:
    """Of the steps that ran as planned, the one whose time is nearest the median; the last of equals."""
    return nearest_median(run.steps[run.steps["in_step"]])


def _moving(moves: NDArray[Any], layers: NDArray[Any]) -> tuple[int, int]:
    """(time with a move under way, of it the time in which no layer waited)."""
    begin, end = _union(moves["start_ns"], moves["stop_ns"])
    moving = int((end - begin).sum())
    waits = layers[layers["stall_ns"] > 0]
    low, high = waits["start_ns"], waits["start_ns"] + waits["stall_ns"]
    waited = int((_covered(begin, end, high) - _covered(begin, end, low)).sum())
    return moving, moving - waited


def _union(start: NDArray[Any], stop: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The stretches that intervals cover together, as (begins, ends) in order."""
    order = np.argsort(start, kind="stable")
    start, stop = start[order].astype(np.int64), stop[order].astype(np.int64)
    reached = np.maximum.accumulate(stop)
    first = np.append(True, start[1:] > reached[:-1])[: len(start)]
    return start[first], reached[np.append(first[1:], True)[: len(start)]]


def _covered(begin: NDArray[np.int64], end: NDArray[np.int64], at: NDArray[Any]) -> NDArray[np.int64]:
    """How much of the stretches lies before each of `at`."""
    if not len(begin):
        return np.zeros(len(at), np.int64)
    before = np.concatenate(([0], np.cumsum(end - begin)))
    which = np.searchsorted(begin, at, "right")
    last = np.maximum(which - 1, 0)
    rest = np.where(which > 0, np.minimum(at, end[last]) - end[last], 0)
    found: NDArray[np.int64] = before[which] + rest
    return found
