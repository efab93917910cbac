"""PlanOrder: what a plan is asked for, as a value, so that whoever makes the plan may be another process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from sentinel.core.budget import Budget
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.planner import plan
from sentinel.simulator import simulate_lawful


class MadePlan(NamedTuple):
    """`simulated`: two steps of `plan`. `left_out`: a sentence on each kind of pin that it does not keep."""

    plan: Plan
    simulated: Run
    left_out: tuple[str, ...]


class PlanOrder(NamedTuple):
    """See `sentinel.planner.plan`. Pins that cannot be kept are left out."""

    profile: Profile
    machine: Machine
    policy: str
    budget: Budget
    pins: Pins

    def made(self) -> MadePlan:
        """The plan. Raises what `plan` raises without any pins."""
        kept, refused = Pins(), list[UsageError | PlanError]()
        for some in filter(None, dict.fromkeys((self.pins, replace(self.pins, slow=()), Pins(slow=self.pins.slow)))):
            try:
                found = self._plan(some)
            except (UsageError, PlanError) as error:
                refused.append(error)
            else:
                kept = some
                break
        else:
            found = self._plan(None)
        simulated = simulate_lawful(found, self.profile, self.machine, steps=2)
        return MadePlan(found, simulated, tuple(_left_out(self.pins, kept, refused)))

    def _plan(self, pins: Pins | None) -> Plan:
        return plan(self.profile, self.machine, self.policy, budget=self.budget, pins=pins)


def _left_out(pins: Pins, kept: Pins, refused: Iterable[UsageError | PlanError]) -> list[str]:
    """Sentences on what of `pins` is not kept, and why."""
    fast = kept.fast != pins.fast or kept.smallest_bytes != pins.smallest_bytes
    lost = " or ".join(kind for kind, is_lost in (("fast", fast), ("slow", kept.slow != pins.slow)) if is_lost)
    whys = (
        error.what if isinstance(error, UsageError) else f"no plan keeps these tensors {lost} ({error})"
        for error in refused
    )
    return [f"{why}; so nothing is kept {lost}" for why in dict.fromkeys(whys)]
