"""Profile and Machine -> Plan. Pure: no clock, no I/O, no randomness; same inputs, same plan, byte for byte."""

from __future__ import annotations

from typing import Protocol

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.planner.portfolio import Sentinel
from sentinel.planner.published import Sentinel2021
from sentinel.planner.seal import seal
from sentinel.planner.simple import AllFast, AllSlow, FirstTouch, footprint_bytes

__all__ = ["POLICIES", "Policy", "footprint_bytes", "plan"]


class Policy(Protocol):
    """Where bytes should live; pure."""

    name: str

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """A Plan that keeps the laws within `machine.fast.capacity_bytes`."""
        ...


POLICIES: dict[str, Policy] = {p.name: p for p in (Sentinel(), Sentinel2021(), FirstTouch(), AllFast(), AllSlow())}
"""By name; `sentinel` is the default."""


def plan(profile: Profile, machine: Machine, policy: str = "sentinel") -> Plan:
    """The plan of a policy for one profile on one machine, checked against the laws.

    Raises UsageError for an unknown policy, Infeasible where not even slow memory helps, PlanError for a bug.
    """
    if policy not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}", f"choose one of {', '.join(sorted(POLICIES))}")
    return seal(POLICIES[policy].plan(profile, machine), profile, machine)
