"""What became of pages that were to move: how many stayed, and why, by the kernel's own word."""

from __future__ import annotations

import errno
import os

from sentinel.core.run import Run
from sentinel.reports.facts import Facts
from sentinel.reports.html.tables import text_as_pairs
from sentinel.reports.section import Document, Section, TextTable

TITLE = "Pages that could not be moved, over all steps"


def stayed(run: Run | None) -> list[tuple[str, int, str]]:
    """(errno, pages, what it means) of all steps, most pages first. On an emulated tier transfers, not pages."""
    if run is None:
        return []
    counts = [(name, pages) for name, pages in run.counters.stayed.items() if pages]
    return [(name, n, _meaning(name)) for name, n in sorted(counts, key=lambda entry: (-entry[1], entry[0]))]


def stayed_rows(run: Run | None) -> list[tuple[str, str, str]]:
    """The same as a table of words, with a head; empty if nothing stayed."""
    rows = [(name, f"{count:,}", meaning) for name, count, meaning in stayed(run)]
    unit = "transfers" if run is not None and run.emulated else "pages"
    return [("errno", unit, "meaning"), *rows] if rows else []


_HERE = {
    "ENOMEM": "the node has no free page",
    "EBUSY": "in use by someone: pinned, or under I/O",
    "EAGAIN": "in use by someone, for the moment",
    "EACCES": "shared with a forked child and CAP_SYS_NICE is missing, or the node is not in the cpuset",
    "ENODEV": "the node is offline or not there",
    "ECANCELED": "the movers were ended first",
}


def _meaning(name: str) -> str:
    code = getattr(errno, name, None)
    return _HERE.get(name) or (os.strerror(code) if code is not None else "")


def _text(report: Document[Facts]) -> TextTable:
    return TextTable(TITLE, stayed_rows(report.facts.executed))


MOVE_ERRORS = Section[Facts](TITLE, text=_text, html=text_as_pairs(_text, TITLE))
