"""What the layers of an executed run take by themselves: the times that its steps are predicted with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.run import Run
from sentinel.simulator.lost import lost_to_moves_ns

LATEST = 8
"""Steps that times are taken from, at most: the first ones still touch memory for the first time."""


def plain_layer_ns(run: Run, length: int, machine: Machine | None = None) -> NDArray[np.int64] | None:
    """(L,) time of each layer without stalls and delays, and without what moves take from compute by the prices of
    `machine`, of the LATEST steps that ran as planned, never the first.

    None where no step but the first has all of its `length` layers.
    """
    return layer_ns_of(run, run.steps["step"][run.steps["in_step"]][1:][-LATEST:], length, machine)


def layer_ns_of(
    run: Run, steps: NDArray[np.int64], length: int, machine: Machine | None = None
) -> NDArray[np.int64] | None:
    """(L,) time of each layer as `plain_layer_ns` has it, of these steps; None where one lacks a layer.

    Each layer's median, all of them scaled alike so that they add up to the median step: what interrupts a step strikes
    another layer each time, so no layer's median sees it, and every step pays for it (docs/decisions/0066).
    """
    mine = np.isin(run.layers["step"], steps)
    rows = run.layers[mine]
    if not len(steps) or len(rows) != len(steps) * length:
        return None
    spent = rows["duration_ns"] - rows["stall_ns"] - rows["slow_ns"]
    if machine is not None:
        spent = spent - np.rint(lost_to_moves_ns(run, machine)[mine]).astype(np.int64)
    spent = spent[np.lexsort((rows["layer"], rows["step"]))].reshape(len(steps), length)
    typical = np.maximum(np.median(spent, axis=0), 1.0)
    step_ns = np.median(spent.sum(axis=1))
    times: NDArray[np.int64] = np.maximum(typical * (step_ns / typical.sum()), 1.0).astype(np.int64)
    return times
