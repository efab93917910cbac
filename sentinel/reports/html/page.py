"""The page of a report: what was done, caveats, then each section. One file, no network, no library."""

from __future__ import annotations

import html
from typing import Any

from sentinel.reports.html.shell import badge, caveat_list, document, graded_caveats, section
from sentinel.reports.html.svg import coded, escape, tag
from sentinel.reports.section import Document, Heading

_SHOWN_CAVEATS = 5
"""Of caveats that have no grades; those after the most important ones are a click away."""


def page(report: Document[Any]) -> str:
    """The whole document."""
    heading = report.heading
    title = f"Sentinel report · {heading.subject}" if heading.subject else "Sentinel report"
    parts = [_header(heading), _caveats(report, heading)]
    parts += [section(part.title, part.html(report)) for part in report.sections]
    return document(title, "".join(parts))


def in_notebook(report: Document[Any], height_em: int) -> str:
    """The whole document as part of another one."""
    looks = f"width: 100%; height: {height_em}em; border: 0"
    return f'<iframe srcdoc="{html.escape(page(report))}" style="{looks}"></iframe>'


def _caveats(report: Document[Any], heading: Heading) -> str:
    """All but what the header says already."""
    if heading.grades is not None:
        return graded_caveats(*([each for each in grade if each != heading.done] for grade in heading.grades))
    return caveat_list([each for each in report.caveats if each != heading.done], _SHOWN_CAVEATS)


def _header(heading: Heading) -> str:
    subject = tag("p", escape(heading.subject), class_="script") if heading.subject else ""
    done = tag("p", escape(heading.done), class_="done-sentence")
    rows = "".join(f"{tag('dt', escape(what))}{tag('dd', coded(said))}" for what, said in heading.summary)
    short = f'<dl class="short">{rows}</dl>' if rows else ""
    files = "".join(tag("p", coded(said), class_="done-sentence") for said in heading.files)
    name = f"<h1>{escape(heading.name.capitalize())} {badge(heading.badge)}</h1>"
    return f"<header>{name}{subject}{done}{short}{files}</header>"
