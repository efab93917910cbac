"""Words that a reader may not know, explained where they stand: a pointer that rests on one is told its meaning."""

from __future__ import annotations

import re

from sentinel.reports.html.svg import escape, tag

MEANINGS = {
    "MIL": "a run of layers at whose boundary migrations may start; its length in layers",
    "case 1": "a promotion is done when needed",
    "case 2": "late for want of room",
    "case 3": "late for want of time",
    "managed": "in memory that Sentinel gives out, so a plan may place and move it",
    "unmanaged": "live bytes that fell back to malloc, shown beside the budget",
    "outside of the plan": (
        "live bytes that no plan has, in ordinary memory: unmanaged, or left in place; counted as fast memory"
    ),
    "falsely shared": "tensors of unlike hotness on one page",
    "false sharing": "tensors of unlike hotness on one page",
}
"""As docs/glossary.md has them; a test compares."""
_ANY = "|".join(sorted(map(re.escape, MEANINGS), key=len, reverse=True))
_WORDS = re.compile(rf"(?<![\w./&-])({_ANY})(?![\w./-])", re.IGNORECASE)
_MEANING_OF = {word.lower(): meaning for word, meaning in MEANINGS.items()}


def explained(text: object) -> str:
    """`text` as markup: each of these words in it has its meaning as tooltip."""
    return _WORDS.sub(_with_meaning, escape(text))


def _with_meaning(found: re.Match[str]) -> str:
    return tag("abbr", found[0], title=_MEANING_OF[found[0].lower()])
