"""Sentences about a noun, each with its condition: rules, of which an error says the first broken one, and notes."""

from __future__ import annotations

import unicodedata
from typing import Any

from sentinel.core.errors import UsageError


def first_broken(*rules: tuple[Any, str]) -> str | None:
    """The first of `rules`, (is it broken, what is wrong), that is broken; None if all are kept."""
    return next((sentence for is_broken, sentence in rules if is_broken), None)


def require(*rules: tuple[Any, str, str]) -> None:
    """Raises UsageError at the first of `rules`, (is it broken, what is wrong, remedy), that is broken."""
    for is_broken, what, remedy in rules:
        if is_broken:
            raise UsageError(what, remedy)


def require_printable(of: str, **texts: str) -> None:
    """Raises UsageError where one of `texts`, by name, has characters that would drive the terminal that it is shown
    on."""
    for name, text in texts.items():
        if not all(each.isprintable() or unicodedata.category(each) == "Zs" for each in text):
            raise UsageError(f"{of}: {name} {text!a} has characters that are not printable", "write it without them")


def holding(*told: tuple[Any, str]) -> list[str]:
    """Of (does it hold, sentence) the sentences that hold, in their order."""
    return [sentence for holds, sentence in told if holds]
