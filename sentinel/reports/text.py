"""The text of a report, for a terminal: what was done, the answer in short, caveats, then each section."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sentinel.core.units import counted
from sentinel.reports.grades import HOW_MADE
from sentinel.reports.section import Document, Heading, TextTable
from sentinel.reports.summary import TITLE as SUMMARY

WIDTH = 100
_PLAIN_BADGES = ("executed", "profiled only")
"""The first line of the text names every other badge."""

_BARS = "▁▂▃▄▅▆▇█"


def text_of(document: Document[Any]) -> str:
    """Every section that there is something to say in."""
    heading = document.heading
    parts = [_title(heading), _summary(heading), _caveats(heading, document.caveats)]
    parts += [_block(section.text(document)) for section in document.sections]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(heading: Heading) -> str:
    label = "" if heading.badge in _PLAIN_BADGES else f" [{heading.badge.upper()}]"
    subject = [printable(heading.subject)] if heading.subject else []
    return "\n".join([printable(f"Sentinel {heading.name}{label}"), *subject, _wrapped(heading.done, "")])


def _summary(heading: Heading) -> str:
    rows = [_wrapped(f"  {what:<8}{sentence}", " " * 10) for what, sentence in heading.summary]
    return "\n".join([SUMMARY, *rows]) if rows else ""


def _caveats(heading: Heading, caveats: Sequence[str]) -> str:
    """All but what the title says already, the serious ones first, marked; how numbers were made by itself."""
    serious, notes, method = heading.grades or (caveats, (), ())
    marked = [*(("!", each) for each in dict.fromkeys(serious)), *(("-", each) for each in dict.fromkeys(notes))]
    told = [_wrapped(f"  {mark} {each}", "    ") for mark, each in marked if each != heading.done]
    made = [_wrapped(f"  - {each}", "    ") for each in dict.fromkeys(method) if each != heading.done]
    first = ["Caveats", *told] if told else []
    return "\n".join([*first, *([f"{counted(len(made), 'note')}{HOW_MADE}", *made] if made else [])])


def _wrapped(sentence: str, indent: str) -> str:
    lines = textwrap.wrap(sentence, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return "\n".join(map(printable, lines))


def _block(table: TextTable) -> str:
    """The table below its title; "" without rows."""
    return "\n".join([table.title, *(f"  {line}" for line in aligned(table.rows))]) if table.rows else ""


def or_dash(value: Any, form: Callable[[Any], str]) -> str:
    """`value` as `form` writes it; a dash where it is not known."""
    return "-" if value is None else form(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, columns as wide as their widest entry; all rows have the same number of them."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def sparkline(values: Sequence[float], top: float, width: int = 64) -> str:
    """Bars of at most `width` characters; each shows the largest of the layers that it stands for."""
    if not len(values) or top <= 0:
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    return "".join(_BARS[min(int(part.max() / top * 8), 7)] if part.max() > 0 else " " for part in parts).rstrip()


def printable(text: str) -> str:
    """`text` without what would break the line or drive the terminal: a name may come from anywhere."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
