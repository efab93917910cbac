"""Layer times read off an executed run add up to its median step, whatever interrupts it and wherever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, STEP_DTYPE, Run
from sentinel.simulator import plain_layer_ns
from sentinel.simulator.plain import LATEST

LAYER = 1_000_000
FIRST = 7 * LAYER  # what each layer of the first step takes: it touches everything for the first time


def executed(extra_ns: list[list[int]], *, stall_ns: int = 0, slow_ns: int = 0) -> Run:
    """A run whose first step is cold, and then one step a row: each layer takes LAYER, and what the row adds."""
    extra = np.array(extra_ns)
    rows = np.vstack([np.full(extra.shape[1], FIRST - LAYER), extra]) + LAYER + stall_ns + slow_ns
    layers = np.zeros(rows.size, LAYER_DTYPE)
    layers["step"], layers["layer"] = np.divmod(np.arange(rows.size), rows.shape[1])
    layers["duration_ns"], layers["stall_ns"], layers["slow_ns"] = rows.reshape(-1), stall_ns, slow_ns
    steps = np.zeros(len(rows), STEP_DTYPE)
    steps["step"], steps["duration_ns"], steps["in_step"] = np.arange(len(rows)), rows.sum(axis=1), True
    return Run("executed", True, ("fast", "slow"), 0, steps, layers, np.zeros(0, MIGRATION_DTYPE))


def times(run: Run, length: int) -> list[int]:
    found = plain_layer_ns(run, length)
    assert found is not None
    return found.tolist()


def test_undisturbed_layers_take_what_they_took_and_stalls_and_delays_are_no_part_of_it() -> None:
    assert times(executed([[0, 0, 0]] * 3, stall_ns=13_000, slow_ns=17_000), 3) == [LAYER] * 3


def test_an_interruption_of_another_layer_each_step_is_shared_by_all() -> None:
    late = 3 * LAYER // 10
    run = executed([[late, 0, 0], [0, late, 0], [0, 0, late]])
    assert times(run, 3) == [LAYER + late // 3] * 3  # each layer's median is LAYER: they would miss `late` a step


def test_an_interruption_of_one_step_only_is_no_part_of_the_median_step() -> None:
    assert times(executed([[0, 0], [5 * LAYER, 0], [0, 0]]), 2) == [LAYER] * 2


def test_what_one_layer_always_takes_is_its_own() -> None:
    assert times(executed([[0, 4 * LAYER], [0, 4 * LAYER], [0, 4 * LAYER]]), 2) == [LAYER, 5 * LAYER]


def test_only_the_latest_steps_count() -> None:
    assert times(executed([[LAYER, 0]] * 9 + [[0, 0]] * LATEST), 2) == [LAYER] * 2


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_step_but_the_first_there_are_none(steps: int) -> None:
    run = executed([[0, 0]])
    assert plain_layer_ns(replace(run, steps=run.steps[:steps]), 2) is None


def test_a_step_that_ticked_otherwise_tells_nothing() -> None:
    run = executed([[9 * LAYER, 0], [0, 0]])
    run.steps["in_step"][1] = False
    assert times(run, 2) == [LAYER] * 2
