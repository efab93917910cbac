"""What every page has: the document around it, and sections. One file, no network, no library."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from sentinel.core.units import counted
from sentinel.files.disk import PAGE_BEGINS
from sentinel.reports.grades import HOW_MADE
from sentinel.reports.html.svg import PATTERNS, escape, tag

SERIOUS_SHOWN = 3
_MARKED = '<div id="marked" role="status" hidden><span></span> <button type="button">clear</button></div>'
"""Says which tensors a click has marked."""


def document(title: str, body: str) -> str:
    """The whole document around `body`, which is markup already."""
    files = resources.files("sentinel.reports.html")
    style, script = ((files / name).read_text("utf-8") for name in ("style.css", "script.js"))
    return (
        f'{PAGE_BEGINS}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body>{PATTERNS}"
        f'<main>{body}</main>{_MARKED}<div id="tip" role="status" hidden></div>'
        f"<script>\n{script}</script></body></html>\n"
    )


def badge(words: str) -> str:
    """What was done, in few words; with a dashed line unless all of it was executed."""
    return tag("span", escape(words), class_="badge" if words == "executed" else "badge dashed")


def section(title: str, *parts: str, note: str = "") -> str:
    """A titled section of `parts`, which are markup already; nothing where they are empty."""
    content = "".join(parts)
    if not content:
        return ""
    said = tag("p", escape(note), class_="note") if note else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def caveat_list(caveats: Sequence[str], shown: int | None = None) -> str:
    """What to know before reading the numbers; those beyond the first `shown` are a click away. "" without any."""
    if not caveats:
        return ""
    items = [tag("li", escape(caveat)) for caveat in caveats]
    first, rest = "".join(items[:shown]), "" if shown is None else "".join(items[shown:])
    more = f"<details><summary>{len(items) - (shown or 0)} more</summary><ul>{rest}</ul></details>" if rest else ""
    return (
        '<section class="caveats" aria-label="Caveats"><h2>Before you read the numbers</h2>'
        f"<ul>{first}</ul>{more}</section>"
    )


def graded_caveats(serious: Sequence[str], notes: Sequence[str], method: Sequence[str]) -> str:
    """At most three serious ones to see; the others, what is good to know and how it was found a click away."""
    first, rest = serious[:SERIOUS_SHOWN], [*serious[SERIOUS_SHOWN:], *notes]
    folded = _folded("more note" if first else "note", rest) + _folded("note", method, HOW_MADE)
    if first:
        items = "".join(tag("li", escape(caveat)) for caveat in first)
        return (
            '<section class="caveats" aria-label="Caveats"><h2>Before you read the numbers</h2>'
            f"<ul>{items}</ul>{folded}</section>"
        )
    return f'<section class="caveats calm" aria-label="Caveats">{folded}</section>' if folded else ""


def _folded(noun: str, caveats: Sequence[str], what: str = "") -> str:
    told = list(dict.fromkeys(caveats))
    items = "".join(tag("li", escape(caveat)) for caveat in told)
    return f"<details><summary>{counted(len(told), noun)}{what}</summary><ul>{items}</ul></details>" if told else ""
