"""The page of a report: what was done, caveats, then each section. One file, no network, no library."""

from __future__ import annotations

from typing import Any

from sentinel.reports.html.shell import caveat_list, document, section
from sentinel.reports.html.svg import escape, tag
from sentinel.reports.section import Document, Heading

_SHOWN_CAVEATS = 5
"""Of the caveats; those after the most important ones are a click away."""


def page(report: Document[Any]) -> str:
    """The whole document."""
    heading = report.heading
    title = f"Sentinel report · {heading.subject}" if heading.subject else "Sentinel report"
    caveats = [caveat for caveat in report.caveats if caveat != heading.done]  # which the header says already
    parts = [_header(heading), caveat_list(caveats, _SHOWN_CAVEATS)]
    parts += [section(part.title, part.html(report)) for part in report.sections]
    return document(title, "".join(parts))


def _header(heading: Heading) -> str:
    badge = tag("span", escape(heading.badge), class_=f"badge {heading.badge.split()[0]}")
    subject = tag("p", escape(heading.subject), class_="script") if heading.subject else ""
    done = tag("p", escape(heading.done), class_="done-sentence")
    rows = "".join(f"{tag('dt', escape(what))}{tag('dd', _coded(said))}" for what, said in heading.summary)
    short = f'<dl class="short">{rows}</dl>' if rows else ""
    return f"<header><h1>{escape(heading.name.capitalize())} {badge}</h1>{subject}{done}{short}</header>"


def _coded(sentence: str) -> str:
    """What stands between back-quotes as code."""
    parts = escape(sentence).split("`")
    return "".join(tag("code", part) if number % 2 else part for number, part in enumerate(parts))
