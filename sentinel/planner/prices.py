"""Prices without a solver, by subgradient: what is overloaded gets dearer, what is idle gets cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum
from sentinel.planner.episodes import Choice, Episodes, episodes_of, room_bytes
from sentinel.planner.pinned_candidates import PinnedCandidates, layer_base_ms, worth_pinning
from sentinel.planner.pricing import Pricer, Prices
from sentinel.planner.workload import Workload

if TYPE_CHECKING:
    from sentinel.planner.master import Columns


def descend(
    work: Workload,
    pricer: Pricer,
    columns: Columns,
    candidates: PinnedCandidates,
    rounds: int,
    keep: int,
) -> Prices:
    """Prices near those at which demand meets supply; the choices of the last `keep` rounds are added to `columns`."""
    length, k = work.n_layers, candidates.exists.shape[1]
    free = np.full(length, float(work.budget_bytes))
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns)
    if work.machine.flops_per_s is None:
        layer_ns = work.compute_ns + work.traffic_ns
    at_stake = float(work.use_ns.sum()) + float(
        candidates.use_ns[candidates.unit_class[candidates.use_group] < 0].sum()
    )
    room_unit = at_stake / max(float(free.sum()), 1.0)
    supply = [np.maximum(layer_ns * rate / 1e9, 1.0) for rate in work.per_s]
    move_unit = [at_stake / max(float(s.sum()), 1.0) for s in supply]
    instants = np.zeros((length, k))
    instants[:, 0] = room_unit / 2
    promote, demote = np.full(length, move_unit[0] / 4), np.full(length, move_unit[1] / 4)
    slow = np.ones(length)
    lost = np.ones(length)
    prices = Prices(instants.sum(axis=1), promote, demote, slow, instants, lost)
    base = layer_base_ms(work, candidates)[0] * 1e6
    average = base
    for number in range(rounds):
        choice, _ = pricer.best(prices)
        chosen = worth_pinning(candidates, prices.instants, prices.slow)
        if number >= rounds - keep:
            columns.add(choice)
        step = 1.0 / (2.0 + 0.25 * number)
        episodes = episodes_of(work, choice)
        held = room_bytes(work, episodes)[:, None] + _alive(candidates, chosen)
        short = np.where(candidates.exists, held / np.maximum(free, 1.0)[:, None] - 1.0, -1.0)
        instants = np.maximum(prices.instants + step * room_unit * np.clip(short, -1.0, 2.0), 0.0)
        promote, demote = (
            np.maximum(before + step * unit * np.clip(moved / able - 1.0, -1.0, 2.0), 0.0)
            for before, unit, moved, able in zip(
                (prices.promote, prices.demote), move_unit, _moved(work, episodes), supply, strict=True
            )
        )
        average = average + (_layer_ns(work, choice, candidates, chosen, base) - average) * max(step, 0.1)
        if work.machine.flops_per_s is not None:
            slow = np.clip(0.5 + 4.0 * (average - work.compute_ns) / np.maximum(layer_ns, 1.0), 0.0, 1.0)
        prices = Prices(instants.sum(axis=1), promote, demote, slow, instants, lost)
    return prices


def _alive(candidates: PinnedCandidates, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, k) bytes of the chosen groups alive at each instant."""
    out = np.zeros(candidates.exists.shape)
    out[candidates.exists] = np.bincount(
        candidates.row, candidates.row_bytes * chosen[candidates.row_group], int(candidates.exists.sum())
    )
    return out


def _moved(work: Workload, episodes: Episodes) -> list[NDArray[np.float64]]:
    """(L,) bytes promoted and demoted, those of slower links for as many as `per_s` moves meanwhile."""
    nbytes = work.units.nbytes[episodes.unit] * work.move_slowdown[:, episodes.unit]
    ways = ((episodes.promote, episodes.held_from), (episodes.demote, episodes.end))
    length = work.n_layers
    return [
        np.bincount(start[w] % length, slowed[w], length).astype(np.float64)
        for slowed, (w, start) in zip(nbytes, ways, strict=True)
    ]


def _layer_ns(
    work: Workload, choice: Choice, candidates: PinnedCandidates, chosen: NDArray[np.bool_], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(L,) ns that each layer's traffic takes."""
    saved = np.bincount(work.layer_of_use, work.use_ns * choice.fast, work.n_layers)
    return (
        base
        - saved
        - np.bincount(candidates.use_layer, candidates.use_ns * chosen[candidates.use_group], work.n_layers)
    )


_ROUNDS = 60


def room_cost_ns(
    item: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    gain_ns: NDArray[np.float64],
    capacity_bytes: int,
    length: int,
) -> NDArray[np.float64]:
    """(items,) what the room of each costs at prices at which about as much is asked for as there is.

    Item `item[i]` wants `nbytes[i]` in the layers [start[i], stop[i]) of the ring; who gains more than it costs, asks.
    What is asked for too much gets dearer, what is idle cheaper; the prices are means of the later rounds.
    """
    begin = start % length
    end = begin + np.minimum(stop - start, length)
    unit = gain_ns.sum() / max(capacity_bytes * length, 1)
    price, mean = np.full(length, unit / 2), np.zeros(length)
    for number in range(_ROUNDS):
        asking = gain_ns > _cost(item, begin, end, nbytes, price, len(gain_ns))
        held = ring_sum(np.zeros_like(item), begin, end, nbytes * asking[item], 1, length)[0]
        over = np.clip(held / max(capacity_bytes, 1) - 1.0, -1.0, 2.0)
        price = np.maximum(price + unit * over / (2.0 + 0.25 * number), 0.0)
        mean += price * (number >= _ROUNDS // 2)
    return _cost(item, begin, end, nbytes, mean / (_ROUNDS - _ROUNDS // 2), len(gain_ns))


def _cost(
    item: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    price: NDArray[np.float64],
    n_items: int,
) -> NDArray[np.float64]:
    total = np.append(0.0, np.cumsum(np.tile(price, 2)))
    return np.bincount(item, nbytes * (total[end] - total[begin]), n_items).astype(np.float64)
