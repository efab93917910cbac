"""What each tensor costs a step: accesses served by slower memory, and its moves with the waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, Run
from sentinel.reports.headline import moves_of_steps
from sentinel.simulator.served import tier_shares

Floats = NDArray[np.float64]


def _sums(of: NDArray[Any], values: Any, n: int) -> Floats:
    """(n,) sums of `values` by what they are of."""
    return np.bincount(of, values, n).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class SlowAccesses:
    """(n,) of each tensor, in one step as planned: bytes touched in slower memory, and by how much longer that takes
    than in fast memory, by the model of `core.cost`; None where no machine says how fast its tiers are."""

    nbytes: Floats
    ns: Floats | None


@dataclass(frozen=True, eq=False)
class Moves:
    """Of each tensor or block, in the mean of a step: moves to slower memory and back, their bytes, how long they
    took, and how long layers waited for them. `late`: moves that came after they were due; `all_late`: those of all
    blocks, a block of several tensors once. Times and these two are None where nothing ran."""

    out: Floats
    back: Floats
    nbytes: Floats
    ns: Floats | None
    waited_ns: Floats | None
    late: Floats | None
    all_late: float | None


def slow_accesses(profile: Profile, plan: Plan, machine: Machine | None) -> SlowAccesses:
    """Of each tensor of `profile`."""
    tensor, n = profile.extents["tensor"][profile.accesses["extent"]], len(profile.names)
    shares = tier_shares(plan, profile)
    slow = shares[1:].sum(axis=0)
    nbytes = _sums(tensor, profile.accesses["touched_bytes"] * slow, n)
    if machine is None or len(machine.tiers) != len(shares):
        return SlowAccesses(nbytes, None)
    extra = np.zeros(len(tensor))
    for tier in machine.slower:
        extra += slow_extra_ns(profile, machine, tier) * shares[tier]
    return SlowAccesses(nbytes, _sums(tensor, extra, n))


def moves_of(run: Run | None, plan: Plan, n_tensors: int) -> Moves:
    """Of each tensor; a block of several passes its bytes and times on to these by what each has of it. Without a
    run: as planned."""
    of_block = _planned(plan) if run is None else _ran(run, len(plan.blocks))
    blocks = plan.block_columns
    tensor, owner = blocks.tensors, blocks.owner
    slots = np.ones(n_tensors)
    slots[plan.slot_columns.tensor] = plan.slot_columns.nbytes
    held = np.minimum(slots[tensor], blocks.nbytes[owner]).astype(np.float64)
    share = held / np.maximum(np.bincount(owner, held, len(blocks)), 1.0)[owner]

    def passed(values: Floats | None, weight: Floats | float) -> Floats | None:
        return None if values is None else _sums(tensor, values[owner] * weight, n_tensors)

    def counted(values: Floats) -> Floats:
        return _sums(tensor, values[owner], n_tensors)

    return Moves(
        counted(of_block.out),
        counted(of_block.back),
        _sums(tensor, of_block.nbytes[owner] * share, n_tensors),
        passed(of_block.ns, share),
        passed(of_block.waited_ns, share),
        passed(of_block.late, 1.0),
        of_block.all_late,
    )


def _planned(plan: Plan) -> Moves:
    moves, n = plan.move_columns, len(plan.blocks)
    down = moves.target > moves.source
    return Moves(
        np.bincount(moves.block[down], minlength=n).astype(np.float64),
        np.bincount(moves.block[~down], minlength=n).astype(np.float64),
        _sums(moves.block, moves.nbytes, n),
        None,
        None,
        None,
        None,
    )


def _ran(run: Run, n_blocks: int) -> Moves:
    """In the mean of the steps that ran as planned."""
    steady = run.steps["step"][run.steps["in_step"]]
    rows = moves_of_steps(run)
    rows = rows[np.isin(rows["step"], steady) & (rows["block"] < n_blocks)]
    block, down, steps = rows["block"], rows["target"] > rows["source"], max(len(steady), 1)

    took = rows["stop_ns"] - rows["start_ns"]
    if run.kind == "executed":
        took[(rows["start_ns"] == 0) | (rows["moved_bytes"] == 0)] = 0  # nobody saw it begin, or it never did

    def mean(weights: Any) -> Floats:
        return _sums(block, weights, n_blocks) / steps

    late = mean((rows["outcome"] == OUTCOMES.index("late")).astype(np.float64))
    return Moves(
        mean(down.astype(np.float64)),
        mean((~down).astype(np.float64)),
        mean(rows["moved_bytes"].astype(np.float64)),
        mean(took.astype(np.float64)),
        mean(waits(rows, run.layers[np.isin(run.layers["step"], steady)])),
        late,
        float(late.sum()),
    )


def waits(moves: NDArray[Any], layers: NDArray[Any]) -> Floats:
    """(moves,) how long layers waited for each: the time between two arrivals within a wait is the later one's."""
    found = np.zeros(len(moves))
    windows = layers[layers["stall_ns"] > 0]
    if not len(windows) or not len(moves):
        return found
    windows = windows[np.argsort(windows["start_ns"], kind="stable")]
    begin, end = windows["start_ns"], windows["start_ns"] + windows["stall_ns"]
    window = np.searchsorted(begin, moves["stop_ns"], "left") - 1
    inside = np.flatnonzero((window >= 0) & (moves["stop_ns"] <= end[window]))
    order = inside[np.lexsort((moves["stop_ns"][inside], window[inside]))]
    stop, of = moves["stop_ns"][order], window[order]
    before = np.concatenate((begin[of[:1]], np.where(of[1:] == of[:-1], stop[:-1], begin[of[1:]])))
    found[order] = stop - before
    return found
