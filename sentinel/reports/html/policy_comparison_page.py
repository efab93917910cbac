"""A comparison of policies as one page: for each profile the curve with its knee, and the policies in tables."""

from __future__ import annotations

from statistics import fmean

import pandas as pd

from sentinel.core.units import format_bytes
from sentinel.planner.sweep import CURVE_POLICY, Cell, Comparison, Knee, Point, Subject
from sentinel.reports.html.shell import badge, caveat_list, document, section
from sentinel.reports.html.svg import WIDTH, Frame, escape, figure, legend, tag, text, y_axis
from sentinel.reports.html.tables import Column, of_share, pairs, table
from sentinel.reports.policy_comparison import (
    EXCHANGE,
    HALF_LINKS,
    WORSE,
    about,
    amount,
    answer,
    gaps,
    knee_of,
    knee_rule,
    refusals,
)

_FRAME = Frame(78, 24, WIDTH - 78 - 150, 260, 1.05)
_COLOURS = ("activation", "grad", "optimizer")
"""Of the policies that are named in the picture, as the style sheet calls them."""
_APART = 64
"""Least distance of two labels below the picture."""


def comparison_page(found: Comparison) -> str:
    """The whole document."""
    answers = "".join(
        f"{tag('dt', escape(subject.profile))}{tag('dd', escape(answer(knee_of(found, subject))))}"
        for subject in found.profiles
    )
    head = (
        f"<header><h1>Policies compared {badge('simulated')}</h1>{tag('p', escape(found.machine), class_='script')}"
        f"{tag('p', 'How much fast memory is enough?', class_='done-sentence')}"
        f'<dl class="short">{answers}</dl></header>'
    )
    caveats = (
        f"Every number is simulated on the described machine {found.machine}: a prediction; nothing was run.",
        *filter(None, (found.price_of_moves,)),
        f"The bound is below every plan's time, perhaps below what any can reach. {EXCHANGE[0].upper()}{EXCHANGE[1:]}.",
        f"The knee is {knee_rule()}. It is no finer than the amounts tried.",
    )
    parts = [_profile(found, subject) for subject in found.profiles]
    return document(f"Sentinel comparison · {found.machine} · simulated", "".join((head, caveat_list(caveats), *parts)))


def _profile(found: Comparison, subject: Subject) -> str:
    cells = [cell for cell in found.cells if cell.profile == subject.profile]
    points = [point for point in found.curve if point.profile == subject.profile]
    told = refusals(cells)
    reasons = pairs([(policy, fast, why) for policy, fast, why in told], "No plan") if told else ""
    parts = (
        _picture(points, cells, knee_of(found, subject)),
        tag("h3", "Speed as a share of all-fast speed (simulated)"),
        _shares(cells, "speed", f"Speed of {subject.profile}"),
        tag("h3", "Speed as a share of the bound (simulated)"),
        _shares(cells, "of_bound", f"Share of the bound of {subject.profile}"),
        *(tag("p", escape(told)) for told in gaps(cells)),
        tag("h3", "Speed as a share of all-fast speed with half the links (simulated)"),
        tag("p", escape(f"{HALF_LINKS[0].upper()}{HALF_LINKS[1:]}.")),
        _shares(cells, "half_links_speed", f"Speed of {subject.profile} with half the links"),
        tag("h3", "Speed as a share of all-fast speed on a worse machine (simulated)"),
        tag("p", escape(f"{WORSE[0].upper()}{WORSE[1:]}.")),
        _shares(cells, "worse_speed", f"Speed of {subject.profile} on a worse machine"),
        tag("h3", "Fast memory held in the mean over the step, as a share of what there is (simulated)"),
        _shares(cells, "mean_share", f"Held by {subject.profile}"),
        tag("h3", "No plan, and why") + reasons if reasons else "",
    )
    return section(subject.profile, *parts, note=about(subject))


def _picture(points: list[Point], cells: list[Cell], knee: Knee | None) -> str:
    """Speed against fast memory: the curve, what the bound leaves, the other policies as marks, the knee."""
    most = max([point.fast_bytes for point in points], default=0) or 1
    ticks = [(share / 5, f"{share / 5:.0%}") for share in range(6)]
    body = y_axis(_FRAME, ticks) + _amounts(points, most)
    for nbytes, best in sorted({(c.fast_bytes, c.bound_speed) for c in cells if c.bound_speed is not None}):
        body += _level(nbytes, best, most)  # a line between two would be below what is possible there
    body += _line([(p.fast_bytes, p.speed) for p in points if p.speed is not None], most, class_="ran")
    named = dict(zip(_fastest(cells), _COLOURS, strict=False))
    for cell in cells:
        if cell.speed is not None and cell.policy != CURVE_POLICY:
            said = f"{cell.policy}, {cell.fast}: {cell.speed:.1%}"
            body += _mark(cell.fast_bytes, cell.speed, most, said, named.get(cell.policy, "muted"))
    for policy, colour in named.items():
        body += _line(_by_amount(cells, policy), most, stroke=f"var(--{colour})", stroke_width=1.2)
    for point in points:
        if point.speed is not None:
            said = f"{CURVE_POLICY}, {amount(point.fast, point.fast_bytes)}: {point.speed:.1%}"
            body += _mark(point.fast_bytes, point.speed, most, said, "fast")
    body += _labels(points, cells, named, most)
    if knee is not None:
        x = _FRAME.x(knee.fast_bytes / most)
        body += tag("line", x1=x, x2=x, y1=_FRAME.top, y2=_FRAME.bottom, class_="budget")
        body += text(x, _FRAME.top - 8, f"knee: {knee.fast}", class_="label", text_anchor="middle")
    entries = [
        ('class="ranswatch"', CURVE_POLICY),
        ('class="predictedlineswatch"', "the bound: no plan is faster"),
        *((f'fill="var(--{colour})"', policy) for policy, colour in named.items()),
    ]
    if len({cell.policy for cell in cells} - {CURVE_POLICY, *named}):
        entries.append(('fill="var(--muted)"', "the other policies"))
    says = f"Speed as a share of all-fast speed against fast memory, simulated. {answer(knee)}"
    return figure("Speed against fast memory, simulated", says, body, _FRAME.bottom + 44, legend(entries))


def _by_amount(cells: list[Cell], policy: str) -> list[tuple[int, float]]:
    return sorted((cell.fast_bytes, cell.speed) for cell in cells if cell.policy == policy and cell.speed is not None)


def _fastest(cells: list[Cell]) -> list[str]:
    """The policies beside the curve's that are fastest in the mean over the amounts that all of them have, the fastest
    first: as many as there are colours. What has fewer plans comes after what has more."""
    speeds: dict[str, list[float]] = {}
    for cell in cells:
        if cell.speed is not None and cell.policy != CURVE_POLICY:
            speeds.setdefault(cell.policy, []).append(cell.speed)
    order = sorted(speeds, key=lambda policy: (-len(speeds[policy]), -fmean(speeds[policy]), policy))
    return order[: len(_COLOURS)]


def _labels(points: list[Point], cells: list[Cell], named: dict[str, str], most: int) -> str:
    """The names of the policies right of their last mark, moved apart where they would lie on one another."""
    ends = [(CURVE_POLICY, "ink", [(p.fast_bytes, p.speed) for p in points if p.speed is not None])]
    ends += [(policy, colour, _by_amount(cells, policy)) for policy, colour in named.items()]
    last = sorted((-values[-1][1], name, colour, values[-1]) for name, colour, values in ends if values)
    parts, free = [], _FRAME.top - 6.0
    for _, name, colour, (nbytes, speed) in last:
        y = max(_FRAME.y(speed) + 4, free)
        free = y + 14
        x = _FRAME.x(nbytes / most) + 9
        parts.append(tag("circle", cx=x, cy=y - 4, r=3, fill=f"var(--{colour})"))
        parts.append(text(x + 6, y, name, class_="label"))
    return "".join(parts)


def _amounts(points: list[Point], most: int) -> str:
    """Amounts below the axis, as asked for and in bytes; those too near to the one before are left out."""
    parts, last = [], -float(_APART)
    for point in points:
        x = _FRAME.x(point.fast_bytes / most)
        if x - last < _APART:
            continue
        last = x
        parts.append(text(x, _FRAME.bottom + 16, point.fast, class_="tick", text_anchor="middle"))
        if point.fast.endswith("%"):
            size = format_bytes(point.fast_bytes)
            parts.append(text(x, _FRAME.bottom + 32, size, class_="tick", text_anchor="middle"))
    return "".join(parts)


def _line(values: list[tuple[int, float]], most: int, **looks: str | float) -> str:
    path = "L".join(f"{_FRAME.x(nbytes / most):.1f} {_FRAME.y(value):.1f}" for nbytes, value in values)
    return tag("path", d=f"M{path}", fill="none", **looks) if path else ""


def _level(nbytes: int, value: float, most: int) -> str:
    x, y = _FRAME.x(nbytes / most), _FRAME.y(value)
    ends = {"x1": x - 14, "x2": x + 14, "y1": y, "y2": y}
    return tag("line", **ends, class_="predictedline", data_t=f"the bound: {value:.1%}")


def _mark(nbytes: int, value: float, most: int, said: str, colour: str) -> str:
    return tag(
        "circle",
        cx=_FRAME.x(nbytes / most),
        cy=_FRAME.y(value),
        r=4,
        fill=f"var(--{colour})",
        data_t=said,
    )


def _shares(cells: list[Cell], column: str, name: str) -> str:
    """Policies by amounts of fast memory."""
    rows: dict[str, dict[str, float | None]] = {}
    for cell in cells:
        rows.setdefault(cell.policy, {})[cell.fast] = getattr(cell, column)
    amounts = {cell.fast: amount(cell.fast, cell.fast_bytes) for cell in cells}
    if column == "speed":
        rows["(the bound)"] = {cell.fast: cell.bound_speed for cell in cells}
        rows["(exchange bound)"] = {cell.fast: cell.exchange_speed for cell in cells}
    frame = pd.DataFrame({fast: [row[fast] for row in rows.values()] for fast in amounts}, dtype="Float64")
    frame.insert(0, "policy", list(rows))
    shown: list[Column] = [("policy", "policy", str), *((fast, title, of_share) for fast, title in amounts.items())]
    return table(frame, shown, name)
