"""Prices by subgradient: what is overloaded gets dearer, what is idle gets cheaper. Needs no solver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.planner.columns import Columns
from sentinel.planner.episodes import Choice, Episodes, episodes_of, room_bytes
from sentinel.planner.master import layer_base_ms
from sentinel.planner.shorts import Stays, worth_it
from sentinel.planner.timelines import Pricer
from sentinel.planner.windows import Prices
from sentinel.planner.workload import Workload


def descend(
    work: Workload,
    pricer: Pricer,
    columns: Columns,
    stays: Stays,
    free: NDArray[np.float64],
    layer_ns: NDArray[np.float64],
    per_s: tuple[float, float],
    rounds: int,
    keep: int,
) -> Prices:
    """Prices near those at which demand meets supply; the choices of the last `keep` rounds are added to `columns`."""
    length, k = work.n_layers, stays.exists.shape[1]
    at_stake = float(work.use_ns.sum()) + float(stays.use_ns[stays.family[stays.use_group] < 0].sum())
    room_unit = at_stake / max(float(free.sum()), 1.0)
    supply = [np.maximum(layer_ns * rate / 1e9, 1.0) for rate in per_s]
    move_unit = [at_stake / max(float(s.sum()), 1.0) for s in supply]
    instants = np.zeros((length, k))
    instants[:, 0] = room_unit / 2
    promote, demote = np.full(length, move_unit[0] / 4), np.full(length, move_unit[1] / 4)
    slow = np.ones(length)
    prices = Prices(instants.sum(axis=1), promote, demote, slow, instants)
    base = layer_base_ms(work, stays)[0] * 1e6
    average = base
    for number in range(rounds):
        choice, _ = pricer.best(prices)
        chosen = worth_it(stays, prices.instants, prices.slow)
        if number >= rounds - keep:
            columns.add(choice)
        step = 1.0 / (2.0 + 0.25 * number)
        episodes = episodes_of(work, choice)
        held = room_bytes(work, episodes)[:, None] + _alive(stays, chosen)
        short = np.where(stays.exists, held / np.maximum(free, 1.0)[:, None] - 1.0, -1.0)
        instants = np.maximum(prices.instants + step * room_unit * np.clip(short, -1.0, 2.0), 0.0)
        promote, demote = (
            np.maximum(before + step * unit * np.clip(moved / able - 1.0, -1.0, 2.0), 0.0)
            for before, unit, moved, able in zip(
                (prices.promote, prices.demote), move_unit, _moved(work, episodes), supply, strict=True
            )
        )
        average = average + (_layer_ns(work, choice, stays, chosen, base) - average) * max(step, 0.1)
        if work.machine.flops_per_s is not None:
            slow = np.clip(0.5 + 4.0 * (average - work.compute_ns) / np.maximum(layer_ns, 1.0), 0.0, 1.0)
        prices = Prices(instants.sum(axis=1), promote, demote, slow, instants)
    return prices


def _alive(stays: Stays, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, k) bytes of the chosen groups alive at each instant."""
    out = np.zeros(stays.exists.shape)
    out[stays.exists] = np.bincount(stays.row, stays.row_bytes * chosen[stays.row_group], int(stays.exists.sum()))
    return out


def _moved(work: Workload, episodes: Episodes) -> list[NDArray[np.float64]]:
    """(L,) bytes promoted and demoted, those of slower links for as many as `per_s` moves meanwhile."""
    nbytes = work.units.nbytes[episodes.unit] * work.drag[:, episodes.unit]
    ways = ((episodes.promote, episodes.held_from), (episodes.demote, episodes.end))
    length = work.n_layers
    return [
        np.bincount(start[w] % length, dragged[w], length).astype(np.float64)
        for dragged, (w, start) in zip(nbytes, ways, strict=True)
    ]


def _layer_ns(
    work: Workload, choice: Choice, stays: Stays, chosen: NDArray[np.bool_], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(L,) ns that each layer's traffic takes."""
    saved = np.bincount(work.use_layer % work.n_layers, work.use_ns * choice.fast, work.n_layers)
    return base - saved - np.bincount(stays.use_layer, stays.use_ns * chosen[stays.use_group], work.n_layers)
