"""The master program: how much of each column happens, so that room and links suffice and the step is shortest.

Dantzig and Wolfe's decomposition: columns come from `timelines` at the prices that this program finds.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from sentinel.planner.columns import Columns
from sentinel.planner.episodes import Episodes
from sentinel.planner.load import spread
from sentinel.planner.shorts import Shorts
from sentinel.planner.windows import Prices
from sentinel.planner.workload import Workload

_MOVE_COST = 1e-3
"""ms a GB moved, on top: solutions that shuffle bytes for nothing cost traffic."""


@dataclass(frozen=True, eq=False)
class Mix:
    """`share`: (columns,) of each unit's bytes; `short`: (groups,) of each short-lived group's that are fast.

    `layer_ns`: (L,) time of each layer. `prices`: what room, links and slow time are worth here.
    """

    share: NDArray[np.float64]
    short: NDArray[np.float64]
    layer_ns: NDArray[np.float64]
    prices: Prices
    step_ns: float


def solve(
    work: Workload, columns: Columns, shorts: Shorts, free: NDArray[np.float64], per_s: tuple[float, float]
) -> Mix | None:
    """The best mix of columns and short-lived groups in (L,) bytes of `free` room; None if the solver fails."""
    length, unit = work.n_layers, columns.unit
    n = columns.n
    layers = np.arange(length)
    base, least = layer_base_ms(work, shorts)
    column, rows = columns.uses
    entries = [(work.use_layer[rows] % length, length + column, work.use_ns[rows] / 1e6)]
    owner, episodes = columns.episodes
    gb = work.units.nbytes[episodes.unit] / 1e9
    k, links = shorts.exists.shape[1], 2 if work.machine.full_duplex else 1
    rooms = (np.cumsum(shorts.exists.reshape(-1)) - 1).reshape(length, k)
    n_rooms = int(shorts.exists.sum())
    entries += _held_rows(shorts, rooms, length, length + n + len(shorts.layer))
    link_row, held_row = length + n_rooms, length + n_rooms + links * length
    held = length + n + len(shorts.layer) + np.arange(length)
    entries += _held_entries(episodes, owner, gb, length, held_row)
    entries += [(held_row + layers, held, np.ones(length)), (held_row + layers[1:], held[:-1], -np.ones(length - 1))]
    for i in range(k):
        here = shorts.mask[:, i]
        place = length + n + np.flatnonzero(here)
        entries.append((length + rooms[shorts.layer[here], i], place, shorts.nbytes[here] / 1e9))
    groups = np.arange(len(shorts.layer))
    entries.append((shorts.layer, length + n + groups, shorts.gain_ns / 1e6))
    cost = np.zeros(length + n + len(groups) + length)
    cost[:length] = 1.0
    for way, (wanted, start, stop) in enumerate(
        ((episodes.promote, episodes.held_from, episodes.begin), (episodes.demote, episodes.end, episodes.held_until))
    ):
        moving = np.flatnonzero(wanted)
        layer = start[moving] % length
        at = length + n_rooms + (way if work.machine.full_duplex else 0) * length
        entries.append((at + layer, length + owner[moving], gb[moving] * (1e12 / per_s[way])))
        np.add.at(cost, length + owner[moving], gb[moving] * _MOVE_COST)
    ones = np.ones(length)
    entries.append((layers, layers, ones))
    entries += [(link_row + link * length + layers, layers, -ones) for link in range(links)]
    first = held_row + length
    used, place = np.unique(unit, return_inverse=True)
    entries.append((first + place, length + np.arange(n), np.ones(n)))
    row, col, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    n_rows = first + len(used)
    low, high = np.full(n_rows, -np.inf), np.zeros(n_rows)
    low[:length], high[:length] = base, np.inf
    high[length:link_row] = np.broadcast_to(free[:, None], shorts.exists.shape)[shorts.exists] / 1e9
    low[held_row:first] = 0.0
    high[first:] = 1.0
    many = n + len(groups)
    endless = np.full(length, np.inf)
    bounds = np.concatenate([least, np.zeros(many + length)]), np.concatenate([endless, np.ones(many), endless])
    answer = _highs(cost, bounds, (low, high), (row, col, value))
    if answer is None:
        return None
    x, dual, objective = answer
    slow = np.clip(dual[:length], 0.0, 1.0)
    moment = np.zeros(shorts.exists.shape)
    moment[shorts.exists] = np.maximum(-dual[length:link_row], 0.0) * 1e-3  # ms a GB -> ns a byte
    paid = [np.maximum(-dual[link_row + link * length :][:length], 0.0) for link in range(links)]
    move = [paid[way % links] * (1e9 / per_s[way]) + _MOVE_COST * 1e-3 for way in (0, 1)]
    prices = Prices(moment.sum(axis=1), move[0], move[1], slow, moment)
    return Mix(x[length : length + n], x[length + n : length + many], x[:length] * 1e6, prices, objective * 1e6)


def _held_rows(
    shorts: Shorts, rooms: NDArray[np.int64], length: int, first: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """What units hold in layer k, column `first + k`, counts at each instant of the layer."""
    layer, instant = np.nonzero(shorts.exists)
    return [(length + rooms[layer, instant], first + layer, np.ones(len(layer)))]


def _held_entries(
    episodes: Episodes, owner: NDArray[np.int64], gb: NDArray[np.float64], length: int, row: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Rows `row + k` define what units hold: layer 0 by a sum, every other by what begins and ends with it.

    Sums in every row would be dense: most columns hold room in most layers of a long gap.
    """
    layer, which = spread(episodes.held_from, episodes.held_until, length)
    at_zero = which[layer == 0]
    out = [(np.full(len(at_zero), row), length + owner[at_zero], -gb[at_zero])]
    for edge, sign in ((episodes.held_from, -1.0), (episodes.held_until, 1.0)):
        some = np.flatnonzero((edge % length != 0) & (episodes.held_until - episodes.held_from < length))
        out.append((row + edge[some] % length, length + owner[some], sign * gb[some]))
    return out


def layer_base_ms(work: Workload, shorts: Shorts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(L,) ms of each layer with everything in slow memory, by traffic; and the least it takes whatever is where.

    Small short-lived tensors count as fast (see `Shorts`).
    """
    slow = np.bincount(work.use_layer % work.n_layers, work.use_ns, work.n_layers).astype(np.float64)
    slow += np.bincount(shorts.layer, shorts.gain_ns, work.n_layers)
    roofline = work.machine.flops_per_s is not None
    held = work.traffic_ns + work.pool_ns
    base = held + slow if roofline else work.compute_ns + held + slow
    least = np.maximum(work.compute_ns, held) if roofline else work.compute_ns + held
    return base / 1e6, least / 1e6


def _highs(
    cost: NDArray[np.float64],
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
    rows: tuple[NDArray[np.float64], NDArray[np.float64]],
    entries: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(rows[0])
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, bounds[0], bounds[1]
    lp.row_lower_, lp.row_upper_ = rows
    row, column, value = entries
    key, place = np.unique(column * lp.num_row_ + row, return_inverse=True)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(key // lp.num_row_, np.arange(lp.num_col_ + 1)).astype(np.int32)
    lp.a_matrix_.index_ = (key % lp.num_row_).astype(np.int32)
    lp.a_matrix_.value_ = np.bincount(place, value, len(key))
    solver = highspy.Highs()
    for option, setting in (("output_flag", False), ("threads", 1), ("solver", "simplex")):
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    return np.array(found.col_value), np.array(found.row_dual), float(solver.getInfo().objective_function_value)
