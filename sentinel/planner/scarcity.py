"""What the room that something asks for is worth to others: prices of a tier's room by layer, without a solver.

By gain for each byte and layer alone, what wants much in one full layer would shut out what wants a little in all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import ring_sum

_ROUNDS = 60


def room_ns(
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
