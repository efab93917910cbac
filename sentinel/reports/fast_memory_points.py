"""How fast a step would be with more fast memory, and with less: plans made of the report's own profile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentinel.core.errors import SentinelError
from sentinel.core.machine import Machine
from sentinel.core.pins import pins_of
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES
from sentinel.planner import POLICIES
from sentinel.planner.sweep import (
    CURVE_POLICY,
    Knee,
    Point,
    Subject,
    curve,
    knee,
    make_subject,
    near_knee,
    never_slower,
)

_TIMES = (2.0, 0.5, 4.0, 1.5, 3.0)
"""Of the fast memory there is: these amounts, in the order of their worth for who buys memory."""


@dataclass(frozen=True)
class FastMemoryPoints:
    """`points`: by amount; of one that was not planned for want of time there is none. `here`, `twice`: those of the
    run's own amount and of the double, or of all that can be used; None where there is none. `knee`: None where no
    point has enough speed. `whole`: all that was asked for was planned."""

    subject: Subject
    points: tuple[Point, ...]
    here: Point
    twice: Point | None
    knee: Knee | None
    whole: bool


class KnownPoints:
    """The points that a session planned last: reports of the same profile, plan and machine need no new ones."""

    def __init__(self) -> None:
        self._of: tuple[Profile, Plan, Machine, int] | None = None
        self._found: FastMemoryPoints | None = None

    def points(
        self, profile: Profile, plan: Plan, machine: Machine, step_ns: int, limit_s: float, expected_s: float = 0.0
    ) -> FastMemoryPoints | None:
        """As `fast_memory_points` has them, planned once."""
        of, known = (profile, plan, machine, step_ns), self._of
        if known is None or step_ns != known[3] or any(a is not b for a, b in zip(of[:3], known[:3], strict=True)):
            self._found = fast_memory_points(profile, plan, machine, step_ns, limit_s, expected_s)
            self._of = of
        return self._found


def fast_memory_points(
    profile: Profile, plan: Plan, machine: Machine, step_ns: int, limit_s: float, expected_s: float = 0.0
) -> FastMemoryPoints | None:
    """The amounts around that of `plan`, of which a step is predicted to take `step_ns`, planned by its policy with its
    pins.

    Begins a plan only where it would end within `limit_s`, by what the last one took; `expected_s`: the first one. None
    where the step fits into fast memory, or the profile cannot be planned.
    """
    began, slowest = time.monotonic(), expected_s
    policy = plan.policy if plan.policy in POLICIES else CURVE_POLICY
    pins = pins_of(plan.details)
    own, footprint = plan.capacity_bytes[0], plan.footprint_bytes
    if not 0 < own < footprint or slowest > limit_s:
        return None
    try:
        subject = make_subject("this step", profile, machine)
        here = _point(subject, own, step_ns, plan.migrated_bytes_per_step)
        points = [here]
        wanted = [own * times for times in _TIMES if own * times < footprint]
        if pins.slow:  # not even with room for the whole step is everything fast
            wanted.insert(0, footprint)
        else:
            points.append(_point(subject, footprint, subject.all_fast_step_ns, 0))
        whole = True
        for nbytes in (int(amount) // PAGE_BYTES * PAGE_BYTES for amount in wanted):
            at = time.monotonic()
            if at - began + slowest > limit_s:
                whole = False
                break
            points += curve(subject, profile, machine, {_share(subject, nbytes): nbytes}, policy, pins)
            slowest = max(slowest, time.monotonic() - at)
        points = list(never_slower(sorted(points, key=lambda point: point.fast_bytes)))
        if whole and time.monotonic() - began + 2 * slowest <= limit_s:
            points = near_knee(subject, profile, machine, points, policy, pins)
    except SentinelError:  # a machine of other tiers, a policy that refuses: the report has the rest
        return None
    double = min(2 * own // PAGE_BYTES * PAGE_BYTES, footprint)
    # the run's own plan is what it is, even where one for less is predicted to be faster
    points = [here if point.fast_bytes == own else point for point in points]
    known = tuple(point for point in points if point.speed is not None)
    twice = next((point for point in known if point.fast_bytes == double), None)
    return FastMemoryPoints(subject, known, here, twice, knee(known), whole)


def _share(subject: Subject, nbytes: int) -> str:
    return f"{nbytes / subject.footprint_bytes:.1%}"


def _point(subject: Subject, nbytes: int, step_ns: int, moved: int) -> Point:
    speed = subject.all_fast_step_ns / step_ns
    return Point(subject.profile, _share(subject, nbytes), nbytes, step_ns, speed, moved, "")
