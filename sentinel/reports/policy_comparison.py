"""A comparison of policies as text and as an object for JSON. Every number in it is simulated, and it says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sentinel.core.units import format_bytes, format_ns
from sentinel.planner.sweep import CURVE_POLICY, KNEE_SHARE, Cell, Comparison, Knee, Point, Subject
from sentinel.reports.text import or_dash

WORSE = "the same plan on a worse machine (links carry half, slow accesses take 1.5 times as long)"
HALF_LINKS = "the same plan where links alone carry half"
EXCHANGE = "the exchange bound: of plans that would hold room on one side of a move only"
BAR = 40
"""Characters of the bar that stands for all-fast speed."""


def as_object(found: Comparison) -> dict[str, Any]:
    """JSON values only; what is unknown is null."""
    return {
        "kind": "simulated",
        "machine": found.machine,
        "policies": list(found.policies),
        "knee_rule": knee_rule(),
        "worse_machine": WORSE,
        "half_links": HALF_LINKS,
        "price_of_moves": found.price_of_moves,
        "profiles": [asdict(subject) for subject in found.profiles],
        "cells": [asdict(cell) for cell in found.cells],
        "curve": [asdict(point) for point in found.curve],
        "knee": [asdict(knee) for knee in found.knees],
    }


def text(found: Comparison) -> str:
    """What a terminal shows: for each profile the policies by amount of fast memory, then the curve and its knee."""
    head = (f"simulated on {found.machine}: predictions, nothing was run", found.price_of_moves)
    parts = ["\n".join(filter(None, head))]
    for subject in found.profiles:
        cells = [cell for cell in found.cells if cell.profile == subject.profile]
        points = [point for point in found.curve if point.profile == subject.profile]
        worse = _of_policies(cells, f"Step, simulated: as described / {HALF_LINKS} / {WORSE}", _steps)
        held = _of_policies(cells, "Fast memory held, simulated: at most / in the mean over the step", _held)
        tables = [_table(cells), worse, held] if cells else []
        parts += [
            about(subject),
            *tables,
            "\n".join(gaps(cells)),
            _refusals(cells),
            _curve(points, knee_of(found, subject)),
        ]
    return "\n\n".join(part for part in parts if part)


def about(subject: Subject) -> str:
    """A profile in one line."""
    return (
        f"{subject.profile}: {subject.n_tensors} tensors, {subject.n_layers} layers,"
        f" footprint {format_bytes(subject.footprint_bytes)};"
        f" {format_ns(subject.all_fast_step_ns)} a step with all of it in fast memory (simulated)"
    )


def knee_rule() -> str:
    """The rule of the knee in a sentence."""
    return f"the least amount tried with which {CURVE_POLICY} has at least {KNEE_SHARE:.0%} of all-fast speed"


def knee_of(found: Comparison, subject: Subject) -> Knee | None:
    """The knee of one profile's curve, if it has one."""
    return next((knee for knee in found.knees if knee.profile == subject.profile), None)


def answer(knee: Knee | None) -> str:
    """How much fast memory it takes, in a sentence."""
    if knee is None:
        return f"Knee (simulated): none; no amount tried gives {KNEE_SHARE:.0%} of all-fast speed. Try more."
    said = f"Knee (simulated): {amount(knee.fast, knee.fast_bytes)} gives {knee.speed:.1%} of all-fast speed"
    if knee.too_little_bytes is None:
        return f"{said}; less was not tried."
    less = format_bytes(knee.too_little_bytes)  # its speed is too low, or it has no plan
    return f"{said}; the next smaller amount tried, {less}, is not enough for {KNEE_SHARE:.0%}."


def amount(fast: str, nbytes: int) -> str:
    """An amount as asked for, and in bytes where that was a share."""
    return f"{fast} ({format_bytes(nbytes)})" if fast.endswith("%") else format_bytes(nbytes)


def refusals(cells: list[Cell]) -> list[tuple[str, str, str]]:
    """(policy, amounts, why) of each policy that has no plan, for a reason each."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.refused:
            found.setdefault((cell.policy, cell.refused), []).append(cell.fast)
    return [(policy, ", ".join(amounts), why) for (policy, why), amounts in found.items()]


def gaps(cells: list[Cell]) -> list[str]:
    """Of each policy that searches, how far from its program's best its search may have ended, by amount."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.gap is not None:
            found.setdefault(cell.policy, []).append(f"{cell.gap:.2%} with {cell.fast}")
    return [
        f"{policy}: the gap of its search is {', '.join(told)}; by no more could its program's step be shorter."
        for policy, told in found.items()
    ]


def _table(cells: list[Cell]) -> str:
    amounts = list(dict.fromkeys(cell.fast for cell in cells))
    loose = list(dict.fromkeys(cell.loose for cell in cells if cell.loose))
    first = {cell.fast: cell for cell in reversed(cells)}
    note = f"\n~ the bound may be loose: {'; '.join(loose)}" if loose else ""
    bounds = [
        ["(the bound)", *(_bound(first[fast]) for fast in amounts)],
        ["(exchange bound)", *(_exchange_bound(first[fast]) for fast in amounts)],
    ]
    title = "Speed as a share of all-fast speed / of the bound, simulated"
    return _of_policies(cells, title, _shares, bounds) + f"{note}\n{EXCHANGE}"


def _of_policies(cells: list[Cell], title: str, told: Callable[[Cell], str], first: Sequence[list[str]] = ()) -> str:
    """A row for each policy, a column for each amount of fast memory."""
    amounts = list(dict.fromkeys(cell.fast for cell in cells))
    by_place = {(cell.policy, cell.fast): cell for cell in cells}
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    rows = [["fast memory", *amounts], *first]
    rows += [[policy, *(told(by_place[policy, fast]) for fast in amounts)] for policy in policies]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([title, *lines])


def _bound(cell: Cell) -> str:
    return "-" if cell.bound_speed is None else f"{cell.bound_speed:.3f} / {'~' if cell.loose else ''}1.000"


def _exchange_bound(cell: Cell) -> str:
    if cell.exchange_step_ns is None or cell.exchange_speed is None:
        return "-"
    return f"{cell.exchange_speed:.3f} / {cell.bound_step_ns / cell.exchange_step_ns:.3f}"


def _shares(cell: Cell) -> str:
    if cell.speed is None or cell.of_bound is None:
        return "-"
    return f"{cell.speed:.3f} / {'~' if cell.loose else ''}{cell.of_bound:.3f}"


def _steps(cell: Cell) -> str:
    if cell.step_ns is None:
        return "-"
    worse = (or_dash(step, format_ns) for step in (cell.half_links_step_ns, cell.worse_step_ns))
    return " / ".join((format_ns(cell.step_ns), *worse))


def _held(cell: Cell) -> str:
    if cell.fast_peak_bytes is None:
        return "-"
    return f"{format_bytes(cell.fast_peak_bytes)} / {or_dash(cell.fast_mean_bytes, format_bytes)}"


def _refusals(cells: list[Cell]) -> str:
    lines = [f"  {policy} at {amounts}: {why}" for policy, amounts, why in refusals(cells)]
    return "\n".join(["No plan (-):", *lines]) if lines else ""


def _curve(points: list[Point], knee: Knee | None) -> str:
    lines = [f"How much fast memory? Speed of {CURVE_POLICY} as a share of all-fast speed, simulated"]
    names = [amount(point.fast, point.fast_bytes) for point in points]
    width = max(len(name) for name in names)
    for name, point in zip(names, points, strict=True):
        if point.speed is None:
            lines.append(f"{name:>{width}}      -  {point.refused}")
            continue
        mark = "  <- knee" if knee and knee.fast_bytes == point.fast_bytes else ""
        bar = "#" * round(min(point.speed, 1.0) * BAR)
        lines.append(f"{name:>{width}}  {point.speed:.3f}  {bar:<{BAR}}{mark}".rstrip())
    return "\n".join([*lines, answer(knee)])
