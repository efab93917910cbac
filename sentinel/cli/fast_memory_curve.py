"""How much fast memory is enough for a step that was just watched: the curve of `sentinel compare`, without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sentinel.cli.common import telling
from sentinel.core.units import format_bytes, parse_budget

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.profile import Profile

CURVE = ("5%", "10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%", "100%")


def curve_text(label: str, profile: Profile, machine: Machine, asked: str | None) -> str:
    """The curve, its knee, and where `asked` lies on it. Raises UsageError for a step without managed tensors."""
    from sentinel.planner.sweep import Comparison, curve, knee, make_subject, near_knee
    from sentinel.reports.policy_comparison import text
    from sentinel.reports.price_of_moves import about_moves

    with telling("simulating the curve of fast memory"):
        subject = make_subject(label, profile, machine)
        amounts = {fast: parse_budget(fast, subject.footprint_bytes) for fast in (*CURVE, *filter(None, [asked]))}
        points = near_knee(subject, profile, machine, list(curve(subject, profile, machine, amounts)))
    at = knee(points)
    knees = () if at is None else (at,)
    found = Comparison(machine.name, (), (subject,), (), tuple(points), knees, about_moves(machine))
    here = next((point for point in points if asked is not None and point.fast_bytes == amounts[asked]), None)
    if here is None or here.speed is None:
        return text(found)
    return f"{text(found)}\nYou are here: {asked}, {format_bytes(here.fast_bytes)}, {here.speed:.3f} of all-fast speed."
