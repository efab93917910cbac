"""What moves took from compute in a run, by the prices of its machine: the simulator's own law, read off the tables.

A simulated run was lengthened by so much; of an executed one it is what the model expects of its migrations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.run import Run


def lost_to_moves_ns(run: Run, machine: Machine) -> NDArray[np.float64]:
    """(rows of `run.layers`,) ns: what was lost to bytes that moved while a layer computed, and to the moves that it
    submitted; never more than the layer took besides its stall. What moves while a layer waits costs nothing more."""
    layers, moves = run.layers, run.migrations
    if not len(layers) or not any(link.takes_from_compute for link in machine.links):
        return np.zeros(len(layers))
    per_kib, per_move = np.zeros((2, len(machine.tiers), len(machine.tiers)))
    for link in machine.links:
        per_kib[link.source, link.target] = link.lost_ns_per_kib
        per_move[link.source, link.target] = link.lost_ns_per_move
    ends = moves["source"], moves["target"]
    seen = moves["stop_ns"] > moves["start_ns"]
    rows = moves[seen]
    pace = (rows["moved_bytes"] / 1024 * per_kib[ends][seen]) / (rows["stop_ns"] - rows["start_ns"])
    begin = layers["start_ns"] + layers["stall_ns"]
    end = layers["start_ns"] + layers["duration_ns"]
    moving = _lost_before(end, rows["start_ns"], rows["stop_ns"], pace)
    moving -= _lost_before(begin, rows["start_ns"], rows["stop_ns"], pace)
    length = int(layers["layer"].max()) + 1
    place = layers["step"].astype(np.int64) * length + layers["layer"]
    order = np.argsort(place, kind="stable")
    submitted = moves["step"].astype(np.int64) * length + moves["layer"]
    at = np.searchsorted(place[order], submitted)
    known = (at < len(place)) & (place[order][np.minimum(at, len(place) - 1)] == submitted)
    out = np.maximum(moving, 0.0)
    np.add.at(out, order[at[known]], per_move[ends][known])
    return np.asarray(np.minimum(out, np.maximum(end - begin, 0)), np.float64)


def _lost_before(
    at: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], pace: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What is lost before each of `at` while stretches [start, stop) each take `pace` of the time."""
    if not len(start):
        return np.zeros(len(at))
    times = np.concatenate([start, stop])
    order = np.argsort(times, kind="stable")
    times, change = times[order], np.concatenate([pace, -pace])[order]
    paces = np.clip(np.cumsum(change), 0.0, 1.0)  # at 1 compute stands still
    total = np.append(0.0, np.cumsum(paces[:-1] * np.diff(times)))
    return np.asarray(np.interp(at, times, total), np.float64)
