"""An executed comparison as one page: the served share as bars, the table, and what to know before reading it."""

from __future__ import annotations

import pandas as pd

from sentinel.reports.html.shell import badge, caveat_list, document, section
from sentinel.reports.html.svg import WIDTH, escape, figure, tag, text
from sentinel.reports.html.tables import pairs, table
from sentinel.reports.placement_comparison import HEADS, PlacementComparison, cells, notes, title

_LEFT, _BAR, _GAP = 170, 20, 10


def executed_page(found: PlacementComparison) -> str:
    """The whole document."""
    kind = "executed, emulated machine" if found.emulated else "executed"
    head = (
        f"<header><h1>Placements compared {badge(kind)}</h1>{tag('p', escape(title(found)), class_='script')}</header>"
    )
    frame = pd.DataFrame([dict(zip(HEADS, cells(row), strict=True)) for row in found.rows], columns=list(HEADS))
    parts = (
        head,
        caveat_list(notes(found)),
        section("Touched bytes served by fast memory", _bars(found)),
        section("All placements", table(frame, [(name, name, str) for name in HEADS], "All placements")),
        section("Where", pairs(list(found.where.items()), "Where it ran")),
    )
    return document(f"Sentinel · {title(found)}", "".join(parts))


def _bars(found: PlacementComparison) -> str:
    """One bar a placement that ran, as long as its share."""
    rows = [row for row in found.rows if row.served_share is not None]
    room = WIDTH - _LEFT - 80
    body = ""
    for index, row in enumerate(rows):
        share = row.served_share or 0.0
        top = 8 + index * (_BAR + _GAP)
        colour = "var(--fast)" if row.ours is not None else "var(--muted)"
        body += text(_LEFT - 8, top + _BAR - 5, row.name, class_="label", text_anchor="end")
        body += tag("rect", x=_LEFT, y=top, width=f"{room * share:.1f}", height=_BAR, fill=colour)
        body += text(_LEFT + room * share + 6, top + _BAR - 5, f"{share:.1%}", class_="label")
    says = "; ".join(f"{row.name} {row.served_share:.1%}" for row in rows)
    return figure("Share of touched bytes served by fast memory", says, body, 8 + len(rows) * (_BAR + _GAP), "")
