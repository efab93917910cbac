"""What was aimed at and is missed, collected from the pages of results, which mark it.

    python -m benchmarks.missed_goals > docs/missed-goals.md

A page says what a figure is of and where it was measured; this one only leads there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "missed-goals.md"
MARKS = ("**missed**", "**not held**", "not with that peak, by the bound")
"""As pages spell them; a test finds other spellings."""
_FIGURE = re.compile(r"[-+−≤≥]? ?[\d.]++(?!×)")
_HEAD = """# Goals that are missed

Made from the pages beside it by `python -m benchmarks.missed_goals > docs/missed-goals.md`; a test compares it. Each
line is of one goal, with what was found. Goals that nobody has measured yet are in the tables of those pages.
"""
_OF_THE_CODE = """
## Of the code

Counted on 26 and 29 November 2026; no benchmark does.

- `sentinel/` was to have fewer statements than before tiers, moves and positions got one owner each: it had 19,641
  before (commit 604538a and what is before it), 19,763 with that rebuilding done, 36,994 with files as a tier,
  training data, estimates and ranks, and 39,987 after four days in which mostly defects were mended."""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_found(), _OF_THE_CODE]) + "\n"


def _found() -> Iterator[str]:
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = "" if path.name == PAGE else path.read_text()
        goals = list(dict.fromkeys(missed(text)))
        if goals:
            title = text.splitlines()[0].removeprefix("# ")
            yield f"- [{title}]({path.name})"
            yield from (f"  - {goal}" for goal in goals)


def missed(text: str) -> Iterator[str]:
    """Each goal of a page that it marks as missed: of a row its cells, figures with the head of their column, of a
    sentence the part that says so; each with the heading that it stands under."""
    heading, above, heads = "", "", list[str]()
    for paragraph in text.split("\n\n"):
        for line in _lines(paragraph):
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif re.match(r"\|\s*:?-", line):
                heads = _cells(above)
            elif any(mark in line for mark in MARKS):
                for goal in _goals(line, heads):
                    yield f"{heading}: {goal}"
            above = line


def _lines(paragraph: str) -> list[str]:
    """Rows and headings one by one; else the paragraph, whatever it is wrapped at."""
    lines = paragraph.strip().splitlines()
    if any(line.startswith(("|", "#", "- ")) for line in lines):
        return lines
    return [" ".join(lines)]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _goals(line: str, heads: Sequence[str]) -> Iterator[str]:
    if line.startswith("|"):
        told = [(head, cell) for head, cell in zip(heads, _cells(line), strict=True) if cell and cell not in MARKS]
        yield ", ".join(f"{head} {cell}" if _FIGURE.match(cell) else cell for head, cell in told)
        return
    for sentence in re.split(r"(?<=[a-z*)])\.\s", line):
        parts = re.sub(r"^Goals?\b[^:]*: ", "", sentence).split(";")
        for part, after in zip(parts, [*parts[1:], ""], strict=True):
            for mark in (mark for mark in MARKS if mark in part):
                found = part.replace(f": {mark}", "").strip()
                yield (f"{found};{after}" if after.startswith(" least") else found).rstrip(".")


if __name__ == "__main__":
    print(page(), end="")
