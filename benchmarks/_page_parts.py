"""What pages of results are made of: where they were made, goals, heads of tables, ratios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Told = Mapping[str, Any]
"""What a benchmark prints."""


def where(told: Told) -> str:
    """When and where it was made, as the end of a sentence and a stop."""
    machine, versions = told["machine"], told["versions"]
    memory = (machine["memory_bytes"] or 0) / 2**30
    kernel = machine["kernel"].split("-")[0]
    commit = f", commit {told['commit']}" if "commit" in told else ""
    return (
        f"made {told['when'][:10]}{commit}, {machine['cores']} cores of an {processor(machine)}, {memory:.0f} GiB,"
        f" Linux {kernel}, Python {versions['python']}, torch {versions['torch']}."
    )


def processor(machine: Told) -> str:
    """The first two words of its name."""
    return " ".join((machine["cpu"] or "unknown processor").split()[:2])


def between(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """The page with these lines, and nothing else, between two marks; ValueError where one is missing."""
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no {end if found else begin}")
    return "\n".join([f"{before}{begin}", "", *lines, f"{end}{after}"])


def goal(text: str, met: bool) -> str:
    """The goal, and whether it is met."""
    return f"{text}: {'met' if met else '**missed**'}"


def headings(*titles: str) -> Iterator[str]:
    """The head of a table."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A whole table."""
    yield from headings(*heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def ratio(found: Told) -> str:
    """A median, with least and most where there are several rounds."""
    spread = f" ({found['least']:.2f}–{found['most']:.2f})" if len(found["rounds"]) > 1 else ""
    return f"{found['median']:.2f}{spread}"
