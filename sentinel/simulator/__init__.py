"""Simulate a Plan on a Machine: the second executor beside the engine. Pure: no clock, no I/O, no randomness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core import laws
from sentinel.core.cost import base_ns, layer_time_ns
from sentinel.core.counters import Counters
from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import HELD_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE, OUTCOMES, REASONS, STEP_DTYPE, Run
from sentinel.core.units import format_ns
from sentinel.simulator.loop import MAX_WARM_STEPS, Record, play
from sentinel.simulator.lost import lost_to_moves_ns
from sentinel.simulator.movers import MOST_NS
from sentinel.simulator.plain import plain_layer_ns
from sentinel.simulator.served import layer_extra_ns, loaded_ns, tier_shares, touched_bytes
from sentinel.simulator.timeline import submitting_ns, timeline

__all__ = ["lost_to_moves_ns", "plain_layer_ns", "simulate", "simulate_lawful"]


def simulate(plan: Plan, profile: Profile, machine: Machine, *, steps: int = 1) -> Run:
    """What `plan` does on `machine` in its cyclic steady state, for so many steps.

    The first rows of the tables are the first steady step; what is in flight across its beginning has a negative
    start. `counters`: `case1`, `case2`, `case3` by the paper's meaning, one a layer before which promotions are due, of
    the last step.
    Raises UsageError if profile and plan have other layers, PlanError if the plan breaks a law or can never run.
    """
    if plan.n_layers != profile.n_layers or len(machine.tiers) != len(plan.tier_names):
        raise UsageError(
            f"the plan has {plan.n_layers} layers and {len(plan.tier_names)} tiers, profile and machine have"
            f" {profile.n_layers} and {len(machine.tiers)}",
            "simulate a plan with the profile and machine it was made for",
        )
    laws.check(plan, profile, machine)
    return simulate_lawful(plan, profile, machine, steps=steps)


def simulate_lawful(plan: Plan, profile: Profile, machine: Machine, *, steps: int = 1) -> Run:
    """As `simulate`, of a plan that keeps the laws: for whoever makes many plans, or has had it checked.

    Raises UsageError where the steps could take more than 2^62 ns together: some unit is another than it should be.
    """
    shares = tier_shares(plan, profile)
    extra = layer_extra_ns(profile, machine, shares)
    compute, traffic = base_ns(profile, machine)
    full = layer_time_ns(compute, traffic, extra, machine)
    full = full + loaded_ns(profile, machine, shares, full)
    slow = full - layer_time_ns(compute, traffic, np.zeros_like(extra), machine)
    alone_ns = full + submitting_ns(plan, machine)
    _check_times(float(alone_ns.sum()), steps, machine)
    line = timeline(plan, machine, alone_ns)
    _check_times(sum(line.duration_ns) + sum(job.duration_ns for job in line.jobs), steps, machine)
    durations, record = play(line, steps)
    served = touched_bytes(profile, shares)
    return Run(
        kind="simulated",
        emulated=False,
        tier_names=plan.tier_names,
        fast_capacity_bytes=plan.capacity_bytes[0],
        steps=_steps(durations, record, profile),
        layers=_layers(record, slow, served, profile.n_layers),
        migrations=_migrations(plan, record),
        held=_held(record, profile.n_layers),
        counters=_cases(plan, record, steps - 1),
    )


def _check_times(step_ns: float, steps: int, machine: Machine) -> None:
    """`step_ns`: most that a step takes: at any time a layer computes or a migration is under way."""
    if not step_ns * (steps + MAX_WARM_STEPS) <= MOST_NS:  # also where it is no number
        raise UsageError(
            f"a step takes up to {format_ns(step_ns)} on machine {machine.name}, which is too long to simulate",
            "bandwidths are bytes per second, flops_per_s is FLOP per second, latencies and times of layers are ns",
        )


def _steps(durations: list[int], record: Record, profile: Profile) -> NDArray[np.void]:
    length = profile.n_layers
    out = np.zeros(len(durations), STEP_DTYPE)
    for step, duration in enumerate(durations):
        rows = slice(step * length, (step + 1) * length)
        peak = max(held[0] for held in record.layer_held_bytes[rows])
        start, stall = record.layer_start_ns[step * length], sum(record.layer_stall_ns[rows])
        out[step] = (step, start, duration, stall, peak, profile.unmanaged_peak_bytes, True)
    return out


def _layers(
    record: Record,
    slow: NDArray[np.float64],
    served: tuple[NDArray[np.int64], NDArray[np.int64]],
    length: int,
) -> NDArray[np.void]:
    rows = len(record.layer_start_ns)
    out = np.zeros(rows, LAYER_DTYPE)
    layer = np.arange(rows) % length
    out["step"], out["layer"] = np.arange(rows) // length, layer
    out["start_ns"], out["stall_ns"] = record.layer_start_ns, record.layer_stall_ns
    out["duration_ns"] = np.array(record.layer_spent_ns, np.int64) + out["stall_ns"]
    out["slow_ns"] = np.rint(slow).astype(np.int64)[layer]
    out["fast_bytes"], out["slow_bytes"] = [held[0] for held in record.layer_held_bytes], record.layer_slow_bytes
    out["touched_bytes"], out["served_fast_bytes"] = served[0][layer], served[1][layer]
    return out


def _held(record: Record, length: int) -> NDArray[np.void]:
    """Rows of HELD_DTYPE, where there are several slower tiers."""
    held = np.array(record.layer_held_bytes, np.int64)[:, 1:]
    rows, slower = held.shape
    out = np.zeros(rows * slower if slower > 1 else 0, HELD_DTYPE)
    if len(out):
        row = np.repeat(np.arange(rows), slower)
        out["step"], out["layer"] = row // length, row % length
        out["tier"], out["nbytes"] = np.tile(np.arange(1, slower + 1), rows), held.ravel()
    return out


def _migrations(plan: Plan, record: Record) -> NDArray[np.void]:
    out = np.zeros(len(record.jobs), MIGRATION_DTYPE)
    if not record.jobs:
        return out
    out["step"], out["layer"], job, out["start_ns"], out["stop_ns"], late, _ = np.array(record.jobs, np.int64).T
    moves = plan.move_columns
    for name in ("block", "source", "target", "nbytes"):
        out[name] = getattr(moves, name)[job]
    out["moved_bytes"] = out["nbytes"]
    out["outcome"] = np.where(late, OUTCOMES.index("late"), OUTCOMES.index("done"))
    out["reason"] = np.array([REASONS.index(move.reason) for move in plan.migrations])[job]
    return out


def _cases(plan: Plan, record: Record, last: int) -> Counters:
    """Counts of layers of the last step before which promotions were due: all arrived; late for room; late for time."""
    worst: dict[int, int] = {}
    for step, _, job, _, _, late, waited in record.jobs:
        move = plan.migrations[job]
        if step == last and move.target < move.source:
            case = 1 if not late else 2 if waited else 3
            layer = move.due % plan.n_layers
            worst[layer] = max(worst.get(layer, 1), case)
    found = list(worst.values())
    return Counters(case1=found.count(1), case2=found.count(2), case3=found.count(3))
