"""Policies side by side: cells by amount of fast memory, the what-if curve, its knee. All of it simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import LESS, Machine
from sentinel.core.pins import Pins
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes, parse_budget
from sentinel.planner import POLICIES, bound, exchange_bound, footprint_bytes, not_slower, plan
from sentinel.planner.make_plan import SEARCHING
from sentinel.simulator import simulate_lawful

CURVE_POLICY = "sentinel"
"""The policy of the curve."""

DEFAULT_POLICIES = tuple(name for name in POLICIES if name not in ("autotm", "all-fast"))
"""All but `autotm`, which takes far longer, and `all-fast`, which the others are a share of."""

KNEE_SHARE = 0.95
"""Of all-fast speed; the knee is where the curve first reaches it."""

HALVINGS = 2
"""So often what lies between the knee and the next smaller amount is halved: a tenth to a fortieth of the footprint."""


@dataclass(frozen=True)
class Subject:
    """One profile on the machine: what its cells are shares of."""

    profile: str
    n_tensors: int
    n_layers: int
    footprint_bytes: int
    all_fast_step_ns: int


@dataclass(frozen=True)
class Point:
    """A plan with an amount of fast memory, as asked for (`fast`) and in bytes. What a refused one cannot know is None.

    `speed`: all-fast time over its own, at most about 1. `refused`: why there is no plan. `worse_step_ns`: the same
    plan on `Machine.worse`; `half_links_step_ns`: where links alone carry half. `fast_peak_bytes`, `fast_mean_bytes`:
    held in fast memory at most, and in the mean over the time of the step. `gap`: of a policy that searches, by what
    share of its time its program could be shorter at most.
    """

    profile: str
    fast: str
    fast_bytes: int
    step_ns: int | None
    speed: float | None
    migrated_bytes_per_step: int | None
    refused: str
    worse_step_ns: int | None = None
    fast_peak_bytes: int | None = None
    fast_mean_bytes: int | None = None
    gap: float | None = None
    half_links_step_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cell(Point):
    """The plan of one policy, beside what is possible there.

    `bound_speed`: all-fast time over the bound, which no plan of this kind can pass, None where that is less than a
    nanosecond. `of_bound`: the bound over its own time, at most 1. `loose`: why the bound may be far below the best
    plan; empty if it is tight. `exchange_step_ns`, `exchange_speed`: the looser bound of plans that hold room on one
    side of a move only, and all-fast time over it; None where it is loose. `worse_speed`, `half_links_speed`: all-fast
    time over `worse_step_ns` and `half_links_step_ns`.
    """

    policy: str
    bound_step_ns: int
    bound_speed: float | None
    of_bound: float | None
    loose: str
    worse_speed: float | None = None
    exchange_step_ns: int | None = None
    exchange_speed: float | None = None
    half_links_speed: float | None = None

    @property
    def mean_share(self) -> float | None:
        """What is held in the mean over the step, as a share of the fast memory there is."""
        return None if self.fast_mean_bytes is None or not self.fast_bytes else self.fast_mean_bytes / self.fast_bytes


@dataclass(frozen=True)
class Knee:
    """The least amount on the curve with at least KNEE_SHARE of all-fast speed.

    `too_little_bytes`: the next smaller amount on the curve, which is not enough; None if there is none.
    """

    profile: str
    fast: str
    fast_bytes: int
    speed: float
    too_little_bytes: int | None


@dataclass(frozen=True)
class Comparison:
    """All of it on one machine. `knees` has no entry for a profile whose curve never reaches KNEE_SHARE.
    `price_of_moves`: what moves take from compute there, in sentences."""

    machine: str
    policies: tuple[str, ...]
    profiles: tuple[Subject, ...]
    cells: tuple[Cell, ...]
    curve: tuple[Point, ...]
    knees: tuple[Knee, ...]
    price_of_moves: str = ""


def make_subject(name: str, profile: Profile, machine: Machine) -> Subject:
    """What the step needs and how long it takes with everything in fast memory. Raises UsageError for an empty step."""
    footprint = footprint_bytes(profile)
    if not footprint:
        raise UsageError(f"profile {name} has no managed tensor", "record a step that allocates some")
    all_fast = plan(profile, machine.with_fast_capacity(footprint), "all-fast").predicted_step_ns
    if not all_fast:
        raise UsageError(f"profile {name} takes no time on {machine.name}", "record a step with times")
    return Subject(name, len(profile.names), profile.n_layers, footprint, all_fast)


def curve(
    subject: Subject,
    profile: Profile,
    machine: Machine,
    amounts: Mapping[str, int],
    policy: str = CURVE_POLICY,
    pins: Pins | None = None,
) -> Iterator[Point]:
    """A point for each of `amounts` (as asked for -> bytes), by bytes; more is never slower. `pins`: as in `plan`.

    Of two that are the same bytes the first is taken. An amount without a plan, or too small for `pins`, gives a
    refused point.
    """
    fast_of: dict[int, str] = {}
    for fast, nbytes in amounts.items():
        fast_of.setdefault(nbytes, fast)
    best: dict[str, Plan] = {}
    for nbytes, fast in sorted(fast_of.items()):
        yield _planned(subject, fast, nbytes, profile, machine, policy, best, (PlanError, UsageError), pins=pins)


def near_knee(
    subject: Subject,
    profile: Profile,
    machine: Machine,
    points: Sequence[Point],
    policy: str = CURVE_POLICY,
    pins: Pins | None = None,
) -> list[Point]:
    """`points` of a curve, and one halfway between its knee and the next smaller amount, HALVINGS times in turn."""
    found = list(points)
    for _ in range(HALVINGS):
        at = knee(found)
        if at is None or at.too_little_bytes is None:
            break
        middle = (at.too_little_bytes + at.fast_bytes) / 2
        share = round(100 * middle / subject.footprint_bytes, 1)
        fast = f"{share:g}%" if at.fast.endswith("%") else format_bytes(int(middle))
        nbytes = parse_budget(fast, subject.footprint_bytes)
        if not at.too_little_bytes < nbytes < at.fast_bytes:
            break
        found += curve(subject, profile, machine, {fast: nbytes}, policy, pins)
        found = list(never_slower(sorted(found, key=lambda point: point.fast_bytes)))
    return found


def never_slower(points: Sequence[Point]) -> Iterator[Point]:
    """`points` by bytes, each with the step of the best one up to it."""
    best: Point | None = None
    for point in points:
        if point.step_ns is None:
            yield point
            continue
        if best is not None and (best.step_ns or 0) < point.step_ns:
            point = replace(best, fast=point.fast, fast_bytes=point.fast_bytes)
        best = point
        yield point


def cells(
    subject: Subject,
    profile: Profile,
    machine: Machine,
    point: Point,
    policies: Sequence[str],
    *,
    best: dict[str, Plan] | None = None,
    time_limit_s: float = 60.0,
    search_s: float | None = None,
) -> list[Cell]:
    """A cell for each policy at the amount of `point`. Refusals are cells.

    `best`: of each policy the plan for the next smaller amount of the table, which is used again where it is faster;
    what is taken here is put there. It holds for every policy or for none: without, each has a plan for this amount.
    `time_limit_s`: for each bound. `search_s`: for the search of `autotm`; without, it is as in `plan`.
    """
    best = {} if best is None else best
    there = machine.with_fast_capacity(point.fast_bytes)
    least = bound(profile, there, time_limit_s=time_limit_s)
    looser = exchange_bound(profile, there, time_limit_s=time_limit_s)
    exchange_ns = None if looser.loose else looser.step_ns
    all_fast_ns, found = subject.all_fast_step_ns, []
    for policy in policies:
        limit_s = search_s if policy == SEARCHING else None
        made = _planned(subject, point.fast, point.fast_bytes, profile, machine, policy, best, search_s=limit_s)
        found.append(
            Cell(
                **vars(made),
                policy=policy,
                bound_step_ns=least.step_ns,
                bound_speed=_over(all_fast_ns, least.step_ns),
                of_bound=_over(least.step_ns, made.step_ns),
                loose=least.loose,
                worse_speed=_over(all_fast_ns, made.worse_step_ns),
                exchange_step_ns=exchange_ns,
                exchange_speed=_over(all_fast_ns, exchange_ns),
                half_links_speed=_over(all_fast_ns, made.half_links_step_ns),
            )
        )
    return found


def knee(points: Sequence[Point]) -> Knee | None:
    """The knee of one profile's curve, its points by bytes; None where no point reaches KNEE_SHARE."""
    before: int | None = None
    for point in points:
        if point.speed is not None and point.speed >= KNEE_SHARE:
            return Knee(point.profile, point.fast, point.fast_bytes, point.speed, before)
        before = point.fast_bytes
    return None


def _planned(
    subject: Subject,
    fast: str,
    nbytes: int,
    profile: Profile,
    machine: Machine,
    policy: str,
    best: dict[str, Plan],
    refusals: type[Exception] | tuple[type[Exception], ...] = PlanError,
    **how: Any,
) -> Point:
    """What a policy makes of an amount, or has made of a smaller one: `best`, by policy. `refusals`: what `plan` may
    raise for an amount alone. `how`: as in `plan`."""
    machine = machine.with_fast_capacity(nbytes)
    try:
        made = plan(profile, machine, policy, **how)
    except refusals as error:
        return Point(subject.profile, fast, nbytes, None, None, None, str(error))
    made = best[policy] = not_slower(made, best[policy]) if policy in best else made
    return Point(
        subject.profile,
        fast,
        nbytes,
        made.predicted_step_ns,
        _over(subject.all_fast_step_ns, made.predicted_step_ns),
        made.migrated_bytes_per_step,
        "",
        worse_step_ns=simulate_lawful(made, profile, machine.worse()).step_ns,
        fast_peak_bytes=made.fast_peak_bytes,
        fast_mean_bytes=simulate_lawful(made, profile, machine).fast_mean_bytes,
        gap=made.details.get("gap"),
        half_links_step_ns=simulate_lawful(made, profile, machine.with_links_at(LESS)).step_ns,
    )


def _over(reference_ns: int, step_ns: int | None) -> float | None:
    return reference_ns / step_ns if step_ns else None
