"""What every policy's plan gets last: its uses, its prediction, its shortfall, and the check of the laws."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core import laws
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.uses import block_uses
from sentinel.planner.units import make_units
from sentinel.planner.workload import short_peaks
from sentinel.simulator import simulate_lawful


def seal(plan: Plan, profile: Profile, machine: Machine) -> Plan:
    """`plan` complete and checked. Raises PlanError if it breaks a law."""
    laws.check(plan, profile, machine)
    predicted = plan.predicted_step_ns
    if predicted is None:
        predicted = simulate_lawful(plan, profile, machine).step_ns
    short = max(min(plan.fast_needed_bytes, plan.footprint_bytes) - machine.fast.capacity_bytes, 0)
    units = make_units(profile)
    rs = int(short_peaks(profile, units.short).max(initial=0))
    return replace(
        plan,
        predicted_step_ns=predicted,
        uses=block_uses(plan, profile),
        details={
            "mil": None,
            "intervals": None,
            "cases": None,
            **plan.details,
            "rs_bytes": rs,
            "shortfall_bytes": short,
        },
    )
