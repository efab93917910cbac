"""Tables of the page: they sort by a click on a heading and filter by a word, and can be read without either."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sentinel.reports.html.svg import escape, tag
from sentinel.reports.html.terms import explained
from sentinel.reports.section import Document, TextTable

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 500

Show = Callable[[Any], str]
Column = tuple[str, str, Show]
"""(column of the frame, heading, how a value is written)"""


def plain(value: Any) -> str:
    """A value as it is."""
    return f"{value:,}" if isinstance(value, numbers.Integral) else str(value)


def yes_no(value: Any) -> str:
    """A truth value in a word."""
    return "yes" if value else "no"


def of_share(value: Any) -> str:
    """A share in per cent."""
    return f"{value:.1%}"


def table(
    frame: pd.DataFrame, columns: Sequence[Column], name: str, *, total: int | None = None, keys: Sequence[str] = ()
) -> str:
    """The first MAX_ROWS rows of `frame`; `total` is what it was before it was cut elsewhere. `keys`: of each row, what
    a click on its first cell marks."""
    shown = frame.head(MAX_ROWS)
    numeric = [str(shown[column].dtype) in ("Int64", "Float64") for column, _, _ in columns]
    head = "".join(
        f'<th scope="col"{_class(number)}><button type="button">{explained(title)}</button></th>'
        for (_, title, _), number in zip(columns, numeric, strict=True)
    )
    values = [shown[column].astype(object).where(shown[column].notna(), None).tolist() for column, _, _ in columns]
    shows = [show for _, _, show in columns]
    lines = []
    for index, row in enumerate(zip(*values, strict=True)):
        cells = [_cell(v, show, number) for v, show, number in zip(row, shows, numeric, strict=True)]
        if keys:
            cells[0] = f'<td><button type="button" class="pick">{escape(shows[0](row[0]))}</button></td>'
        lines.append(f"<tr{_key(keys[index]) if keys else ''}>{''.join(cells)}</tr>")
    count = len(frame) if total is None else total
    more = tag(
        "p", escape(f"The first {len(shown)} of {count} rows; all are in the JSON and CSV forms."), class_="note"
    )
    search = f'<label class="filter">Filter <input type="search" aria-label="Filter {escape(name)}"></label>'
    return (
        (search if len(shown) > 12 else "")
        + f'<div class="wide rows" tabindex="0" role="group" aria-label="{escape(name)}">'
        f'<table class="sorts"><caption>{escape(name)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        + (more if count > len(shown) else "")
    )


def pairs(rows: Sequence[Sequence[str]], name: str) -> str:
    """A table of (what, value, remark)."""
    lines = []
    for what, *rest in rows:
        cells = "".join(tag("td", explained(cell)) for cell in rest)
        lines.append(f'<tr><th scope="row">{explained(what)}</th>{cells}</tr>')
    caption = tag("caption", escape(name))
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(name)}">'
        f'<table class="pairs">{caption}{"".join(lines)}</table></div>'
    )


def text_as_pairs(text: Callable[[Document[Any]], TextTable], name: str) -> Callable[[Document[Any]], str]:
    """The markup of a section that shows on the page what `text` shows in the text; nothing without rows."""
    return lambda report: pairs(rows, name) if (rows := text(report).rows) else ""


def _key(key: str) -> str:
    return f' data-k="{key}"' if key else ""


def _class(number: bool) -> str:
    return ' class="n"' if number else ""


def _cell(value: Any, show: Show, number: bool) -> str:
    if value is None:
        return f'<td{_class(number)}><span class="unknown" title="unknown">–</span></td>'
    sort = f' data-v="{value}"' if number else ""
    return f"<td{_class(number)}{sort}>{escape(show(value))}</td>"
