"""How much fast memory is enough for a step that was just watched: the curve of `sentinel compare`, without a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.cli.common import telling
from sentinel.core.units import format_bytes, parse_budget

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.pins import Pins
    from sentinel.core.profile import Profile
    from sentinel.planner.sweep import Comparison, Point

CURVE = ("5%", "10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%", "100%")


def curve_of(
    label: str,
    profile: Profile,
    machine: Machine,
    shares: Sequence[str],
    asked: str | None,
    *,
    fine: bool = False,
    pins: Pins | None = None,
) -> Comparison:
    """The curve at `shares` and at `asked`, with its knee. `fine`: also at two amounts just below the knee. `pins`: of
    tensors whose tier is fixed. Raises UsageError for a step without managed tensors."""
    from sentinel.planner.sweep import Comparison, Point, curve, knee, make_subject, near_knee
    from sentinel.reports.price_of_moves import about_moves

    amounts, points = dict[str, int](), list[Point]()
    with telling("simulating the curve of fast memory", lambda: f"{len(points)} of {len(amounts)} amounts"):
        subject = make_subject(label, profile, machine)
        amounts |= {fast: parse_budget(fast, subject.footprint_bytes) for fast in (*shares, *filter(None, [asked]))}
        points += curve(subject, profile, machine, amounts, pins=pins)
        if fine:
            points = near_knee(subject, profile, machine, points, pins=pins)
    at = knee(points)
    knees = () if at is None else (at,)
    return Comparison(machine.name, (), (subject,), (), tuple(points), knees, about_moves(machine))


def point_at(found: Comparison, asked: str | None) -> Point | None:
    """The point of the curve that was asked for."""
    if asked is None:
        return None
    nbytes = parse_budget(asked, found.profiles[0].footprint_bytes)
    return next((point for point in found.curve if point.fast_bytes == nbytes), None)


def curve_text(label: str, profile: Profile, machine: Machine, asked: str | None, pins: Pins | None = None) -> str:
    """The curve, its knee, and where `asked` lies on it. `pins`, and what it raises: as in `curve_of`."""
    from sentinel.reports.policy_comparison import text

    found = curve_of(label, profile, machine, CURVE, asked, fine=True, pins=pins)
    here = point_at(found, asked)
    if here is None or here.speed is None:
        return text(found)
    return f"{text(found)}\nYou are here: {asked}, {format_bytes(here.fast_bytes)}, {here.speed:.3f} of all-fast speed."
