"""Speed against fast memory, from one run's own profile: where it is, the double, and the knee."""

from __future__ import annotations

from collections.abc import Callable

from sentinel.core.units import format_bytes, format_ns
from sentinel.planner.sweep import KNEE_SHARE
from sentinel.reports.fast_memory_points import FastMemoryPoints
from sentinel.reports.html.svg import Frame, byte_ticks, figure, tag, text, y_axis

_WIDE, _HIGH = 460, 200
"""Small, so that its letters can be read on a phone."""
_APART = 84
"""Least distance of two labels below the picture."""
_LINE, _LETTER = 17.0, 10.0
"""Height of a line of words beside a point, and width of a letter at most, on a phone."""


def memory_curve(found: FastMemoryPoints, mark: Callable[[int], str]) -> str:
    """`mark`: the words beside the point of an amount, if any."""
    frame = Frame(52, 30, _WIDE - 52 - 30, _HIGH, 1.0)
    most = max(point.fast_bytes for point in found.points)
    body = y_axis(frame, [(share / 4, f"{share / 4:.0%}") for share in range(5)])
    knee = frame.y(KNEE_SHARE)
    body += tag("line", x1=frame.left, x2=frame.left + frame.width, y1=knee, y2=knee, class_="budget")
    places = [(frame.x(p.fast_bytes / most), frame.y(min(p.speed or 0.0, 1.0)), p) for p in found.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
    body += tag("path", d=f"M{path}", fill="none", class_="ran")
    taken: list[tuple[float, float, float]] = []
    last = -float(_APART)
    for nbytes, label in byte_ticks(most):
        x = frame.x(nbytes / most)
        if x - last >= _APART:
            body += text(x, frame.bottom + 18, label, class_="tick", text_anchor="middle")
            last = x
    for x, y, point in places:
        words, here = mark(point.fast_bytes), point.fast_bytes == found.here.fast_bytes
        said = (
            f"{format_bytes(point.fast_bytes)}, {point.fast} of the footprint\n{point.speed or 0:.1%} of all-fast speed"
        )
        said += f"\n{format_ns(point.step_ns or 0)} a step" + (f"\n{words}" if words else "")
        colour = "var(--bad)" if here else "var(--fast)" if words else "var(--muted)"
        body += tag("circle", cx=x, cy=y, r=6.0 if here else 4.0, fill=colour, data_t=said)
    for x, y, point in places:
        if words := mark(point.fast_bytes):
            colour = "var(--bad)" if point.fast_bytes == found.here.fast_bytes else "var(--fast)"
            body += _words(frame, taken, x, y, words, colour)
    body += text(frame.left + frame.width, knee + 14, f"{KNEE_SHARE:.0%}", class_="tick", text_anchor="end")
    says = "Speed as a share of all-fast speed (up) against fast memory (right), simulated."
    return figure("Speed against fast memory, simulated", says, body, frame.bottom + 30, width=_WIDE)


def _words(frame: Frame, taken: list[tuple[float, float, float]], x: float, y: float, words: str, colour: str) -> str:
    """The words of the point at (x, y), a line below or above those that they would touch. `taken`: left, right and
    baseline of all so far."""
    wide, before = len(words) * _LETTER, x > frame.left + frame.width * 0.6
    left = x - 8 - wide if before else x + 8
    down = y + 20 + 3 * _LINE < frame.bottom
    line = y + 20 if down else y - 12
    while any(left < end and begin < left + wide and abs(line - other) < _LINE for begin, end, other in taken):
        line += _LINE if down else -_LINE
    taken.append((left, left + wide, line))
    at, side = (x - 8, "end") if before else (x + 8, "start")
    return text(at, line, words, class_="label strong", text_anchor=side, style=f"fill:{colour}")
