"""What is predicted of one workload: a step of it is watched in this process, a child of the proof's, then planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel import session
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import parse_budget
from sentinel.files import digest, save
from sentinel.planner import footprint_bytes, plan
from sentinel.proving.cells import CONTROL
from sentinel.proving.orders import CalibrationOrder, WatchOrder
from sentinel.proving.trained_cell import train
from sentinel.runtime import RUNTIME, Observer, observe
from sentinel.simulator import simulate_lawful


class _FirstPlan(Observer):
    """The first profile of a session, and the machine that its plan is for."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.machine: Machine | None = None

    def profile_made(self, profile: Profile) -> None:
        """See Observer."""
        self.profile = self.profile or profile

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """See Observer."""
        del plan, ranges
        self.machine = self.machine or machine


def watched(order: WatchOrder) -> dict[str, Any]:
    """What the step needs, and what each policy makes of it by simulation; plans are files then.

    Raises UsageError for a script of which no step could be watched, or to which no plan was applied.
    """
    seen = _FirstPlan()
    with observe(seen):
        train(order.training)
        if RUNTIME.sink is not None:
            session.stop()
    profile, machine = seen.profile, seen.machine
    if profile is None or machine is None:
        last = session.current()
        why = "; ".join(last.notes) if last is not None else "no training loop was found"
        raise UsageError(f"{order.workload}: no plan was applied to a profiled step: {why}", "see its log")
    footprint = footprint_bytes(profile)
    of = {policy: _predicted(policy, profile, machine, footprint, order) for policy in order.policies}
    control = of.get(CONTROL, {}).get("step_ns")
    for told in of.values():
        told["ratio"] = told["step_ns"] / control if control and told.get("step_ns") else None
    return {
        "workload": order.workload,
        "fast": order.fast,
        "footprint_bytes": footprint,
        "live_peak_bytes": profile.live_peak_bytes,
        "tensors": len(profile.names),
        "layers": profile.n_layers,
        "tracker": profile.quality.tracker,
        "machine": digest(machine),
        "profile": digest(profile),
        "of": of,
    }


def _predicted(policy: str, profile: Profile, machine: Machine, footprint: int, order: WatchOrder) -> dict[str, Any]:
    """One policy's plan, saved, and its simulated step."""
    budget = footprint if policy == CONTROL else parse_budget(order.fast, footprint)
    within = machine.with_fast_capacity(budget)
    try:
        made = plan(profile, within, policy)
    except PlanError as error:
        return {"refused": str(error)}
    save(made, Path(order.folder) / f"{order.workload}.{policy}.json")
    run = simulate_lawful(made, profile, within)
    return {
        "step_ns": run.step_ns,
        "budget_bytes": budget,
        "migrated_bytes_per_step": made.migrated_bytes_per_step,
        "fast_peak_bytes": made.fast_peak_bytes,
        "fast_mean_bytes": run.fast_mean_bytes,
        "plan": digest(made),
    }


def calibrated(order: CalibrationOrder) -> dict[str, Any]:
    """Measure memory, and write the machine that plans are made for; this host's own calibration stays as it is."""
    from sentinel import calibrate
    from sentinel.system.topology import topology

    host = topology()
    number = order.slow.removeprefix("numa:")
    on_nodes = number != order.slow
    asked = calibrate.plan_measurements(host, nodes=[int(number)] if on_nodes else [], quick=order.quick)
    found = calibrate.calibrate(asked, _tell)
    save(calibrate.machine_of(found, host, None if on_nodes else order.slow), order.path)
    return {"rounds": found.rounds, "measured_bytes": found.nbytes, "notes": list(found.notes)}


def _tell(part: int, parts: int, what: str) -> None:
    from sentinel.system.progress import say

    say(f"calibrating {part}/{parts}: {what}")
