"""What the movers and the layers of one step have to do, as plain numbers: the input of the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import lost_ns, transfer_ns
from sentinel.core.errors import PlanError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.schedule import schedule


class Job(NamedTuple):
    """One migration of the step. `lost_ns`: of compute, while it is under way beside it."""

    source: int
    target: int
    nbytes: int
    duration_ns: int
    lost_ns: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """One step. Lists have one entry a layer; `born_bytes[t][k]`: room that layer k's births take in tier t.

    `pending`: jobs in flight as layer 0 begins; they are submitted first of all. `held_bytes[t]`: room
    taken then, before `born_bytes`.
    """

    duration_ns: list[int]
    jobs: list[Job]
    starts_at: Sequence[Sequence[int]]
    due_before: Sequence[Sequence[int]]
    born_bytes: list[list[int]]
    dead_bytes: list[list[int]]
    pending: list[int]
    held_bytes: list[int]
    capacity_bytes: list[int]
    full_duplex: bool
    submit_layer: list[int]


def timeline(plan: Plan, machine: Machine, duration_ns: NDArray[np.float64]) -> Timeline:
    """The Timeline of `plan` on `machine`; `duration_ns`: (L,) time of each layer without stalls."""
    times = schedule(plan)
    tiers = len(plan.tier_names)
    born, dead, held, pending = _room(plan, tiers)
    return Timeline(
        duration_ns=[int(x) for x in np.rint(duration_ns)],
        jobs=_jobs(plan, machine),
        starts_at=times.starts_at,
        due_before=times.due_before,
        born_bytes=born,
        dead_bytes=dead,
        pending=pending,
        held_bytes=held,
        capacity_bytes=list(plan.capacity_bytes),
        full_duplex=machine.full_duplex,
        submit_layer=plan.move_columns.start.tolist(),
    )


def _jobs(plan: Plan, machine: Machine) -> list[Job]:
    links = {(link.source, link.target): link for link in machine.links}
    found = []
    for move in plan.migrations:
        if (move.source, move.target) not in links:
            source, target = plan.tier_names[move.source], plan.tier_names[move.target]
            raise PlanError(
                f"it migrates from {source} to {target}, where {machine.name} has no link", block=move.block
            )
        link, nbytes = links[move.source, move.target], move.nbytes
        found.append(Job(move.source, move.target, nbytes, transfer_ns(link, nbytes), lost_ns(link, nbytes)))
    return found


def submitting_ns(plan: Plan, machine: Machine) -> NDArray[np.float64]:
    """(L,) what the training thread does in each layer for the migrations that it submits there."""
    per_move = np.zeros((len(machine.tiers), len(machine.tiers)))
    for link in machine.links:
        per_move[link.source, link.target] = link.lost_ns_per_move
    moves = plan.move_columns
    return np.bincount(moves.start, per_move[moves.source, moves.target], plan.n_layers).astype(np.float64)


def _room(plan: Plan, tiers: int) -> tuple[list[list[int]], list[list[int]], list[int], list[int]]:
    """Room taken and given back at each layer, and what is held and in flight as layer 0 begins."""
    length, blocks, flights = plan.n_layers, plan.block_columns, plan.flights
    ends_in = blocks.tier.copy()
    ends_in[flights.block[flights.tail]] = plan.move_columns.target[flights.move[flights.tail]]
    transient = np.flatnonzero(~blocks.lasting)
    nbytes = blocks.nbytes[transient]
    born = _summed(blocks.tier[transient] * length + blocks.start[transient], nbytes, tiers * length)
    dead = _summed(ends_in[transient] * length + blocks.stop[transient] % length, nbytes, tiers * length)
    there = blocks.lasting | (blocks.stop >= length)  # what dies as layer 0 begins is still held
    block, end, moves = flights.block, flights.end, plan.move_columns
    lasting = blocks.lasting[block]
    crossing = there[block] & (end > length) & (lasting | (flights.begin < length))  # in flight as layer 0 begins
    arrived = there[block] & ~lasting & (end <= length)
    tier = blocks.tier.copy()
    tier[block[arrived]] = moves.target[flights.move[arrived]]  # of several the last one
    held = _summed(tier[there], blocks.nbytes[there], tiers).tolist()
    pending = np.sort(flights.move[crossing]).tolist()
    return born.reshape(tiers, length).tolist(), dead.reshape(tiers, length).tolist(), held, pending


def _summed(place: NDArray[np.int64], nbytes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    out = np.zeros(count, np.int64)
    np.add.at(out, place, nbytes)
    return out
