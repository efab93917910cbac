"""Grades: what a reader must know, in three lists by how much it hurts to miss it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SMALL_SHARE = 0.001
"""Of the footprint: what is less tells of bytes too few to matter."""

HOW_MADE = " on how the numbers were made"
"""What follows on `14 notes` where they are of method."""

_METHOD = (
    "A touch is a layer",
    "Freed pages",
    "Large tensors are watched",
    "Machine ",
    "Migrations go no faster",
    "Node ",
    "Nothing was applied: this host",
    "Optimizer state was born",
    "Page migrations were counted by the engine",
    "Planned again after",
    "The bound is loose",
    "The emulated link from",
    "The profiled step (",  # was replaced by a whole one
    "The tracker",
    "This process has ",
    "Tracker ",
)
"""How notes of sessions, plans and profiles begin that say how something was found, or that all went as it should. The
only such list: page and terminal go by the grades."""


class Grades(NamedTuple):
    """Sentences. `serious`: numbers are misread without it; `notes`: good to know; `method`: how numbers were made."""

    serious: list[str]
    notes: list[str]
    method: list[str]

    def all(self) -> list[str]:
        """Each once, the serious ones first."""
        return list(dict.fromkeys(sentence for grade in self for sentence in grade))

    def add(self, found: Iterable[str]) -> None:
        """Sentences from elsewhere: serious unless their beginning says that they are of method."""
        for text in found:
            said = sentence(text)
            (self.method if said.startswith(_METHOD) else self.serious).append(said)


def sentence(text: str) -> str:
    """`text` as a sentence: notes of profiles and plans are written without capital and stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
