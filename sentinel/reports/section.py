"""Section: one part of a report in every form; Document: what any report gives to the forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from sentinel.reports.grades import Grades

if TYPE_CHECKING:  # pandas takes half a second to import: only who asks for tables pays
    import pandas as pd

F = TypeVar("F")
"""What a report is drawn from: of a session, `Facts`."""

Frames = dict[str, "pd.DataFrame"]
"""Tables by name."""


class TextTable(NamedTuple):
    """A titled table of the text form. All rows have the same number of cells; without rows it is not shown."""

    title: str
    rows: Sequence[Sequence[str]]


NO_TEXT = TextTable("", ())


@dataclass(frozen=True)
class Section(Generic[F]):
    """One part of a report. What a section leaves out, or returns empty, is absent from that form.

    `title`: its heading on the page. `table`: the name of its table in `frames()`, JSON and CSV; "" if it has none.
    `frame(facts)`: that table, None if there is nothing for it. `text(report)`: its table in the text. `html(report)`:
    its markup below the heading. Both may read `report.tables`, which has the tables of all sections.
    """

    title: str
    table: str = ""
    frame: Callable[[F], pd.DataFrame | None] = lambda _: None
    text: Callable[[Document[F]], TextTable] = lambda _: NO_TEXT
    html: Callable[[Document[F]], str] = lambda _: ""


class Heading(NamedTuple):
    """What stands on top of a report.

    `name`: what the document is, such as "migration report". `badge`: what was done, in a word. `done`: the same in a
    sentence. `subject`: what it is about, such as a script; "" if unknown. `summary`: (question, answer) rows.
    `grades`: the caveats by how much they matter; None where all are alike. `files`: sentences on files beside it.
    """

    name: str
    badge: str
    done: str
    subject: str = ""
    summary: Sequence[tuple[str, str]] = ()
    grades: Grades | None = None
    files: Sequence[str] = ()


class Document(Protocol[F]):
    """A report of anything. `sentinel.reports.forms.write` writes it in every form."""

    @property
    def heading(self) -> Heading:
        """What stands on top."""

    @property
    def caveats(self) -> list[str]:
        """Sentences to read before the numbers."""

    @property
    def facts(self) -> F:
        """What its sections are drawn from."""

    @property
    def sections(self) -> tuple[Section[F], ...]:
        """Its parts, in the order in which they are read."""

    @property
    def tables(self) -> Frames:
        """The tables of its sections: `tables_of(sections, facts)`, best made once."""

    def values(self) -> dict[str, Any]:
        """What the JSON form has beside the tables; "headline", if there, begins the CSV form."""

    def timeline(self) -> dict[str, Any] | None:
        """The report as a timeline in the Trace Event Format; None if it has none."""


def tables_of(sections: Sequence[Section[F]], facts: F) -> Frames:
    """The tables by name, in the order of the sections."""
    found: Frames = {}
    for section in sections:
        frame = section.frame(facts)
        if frame is not None:
            found[section.table] = frame
    return found
